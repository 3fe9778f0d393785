"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const list = (x) => x || [];
  const lanes = document.getElementById("lanes"), overview = document.getElementById("overview"), tip = document.getElementById("tip");
  const whole = { a: 0, b: Math.max(data.length, 1) };
  let view = { ...whole }, alone = -1, hover = null, colors = {};
  const pad = { left: 92, right: 10, axis: 22 };

  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  function readColors() {
    colors = { nodes: data.nodes.map((_, i) => css("--n" + (i % 10))) };
    for (const c of ["own", "text", "dim", "line", "soft", "card", "bad", "fault", "good", "on"]) colors[c] = css("--" + c);
    colors.band = css("--fault-bg");
  }
  const nodeColor = (i) => (i < 0 ? colors.own : colors.nodes[i]);

  function clock(ms, digits) {
    const s = ms / 1000, m = Math.floor(s / 60), rest = s - 60 * m;
    return m + ":" + (rest < 10 ? "0" : "") + rest.toFixed(digits || 0);
  }
  function took(ms) {
    if (ms < 1) return (ms * 1000).toFixed(0) + " µs";
    if (ms < 1000) return ms.toPrecision(3) + " ms";
    return ms < 100000 ? (ms / 1000).toPrecision(3) + " s" : clock(ms);
  }

  // Faults of one node that go on at once lie one below the other.
  function stack(faults) {
    const ends = [];
    for (const f of faults) {
      let i = ends.findIndex((e) => e <= f.a);
      if (i < 0) i = ends.length;
      ends[i] = f.b;
      f.level = i;
    }
    return Math.max(1, ends.length);
  }
  const faults = list(data.faults);
  const rows = [];
  {
    let y = pad.axis;
    const add = (row, h) => { rows.push({ ...row, y, h }); y += h; };
    add({ kind: "rate", label: "calls/s" }, 44);
    y += 6;
    add({ kind: "leader", label: "leader" }, 16);
    y += 8;
    data.nodes.forEach((n, i) => {
      const mine = faults.filter((f) => f.nodes.includes(i)).map((f) => ({ ...f }));
      const levels = stack(mine);
      add({ kind: "faults", label: n, node: i, faults: mine }, levels * 15 + 3);
    });
    const others = faults.filter((f) => f.nodes.length === 0).map((f) => ({ ...f }));
    if (others.length) add({ kind: "faults", label: "orders", node: -1, faults: others }, stack(others) * 15 + 3);
    y += 10;
    let wanted = true;
    for (const k of data.keys) {
      if (wanted && !k.wanted) { y += 10; wanted = false; }
      add({ kind: "key", label: k.name, key: k }, 22);
    }
    rows.height = y + 8;
  }
  const keyTop = Math.min(...rows.filter((r) => r.kind === "key").map((r) => r.y), rows.height);

  function canvas(c, height) {
    const width = c.clientWidth, dpr = window.devicePixelRatio || 1;
    c.style.height = height + "px";
    c.width = Math.round(width * dpr);
    c.height = Math.round(height * dpr);
    const g = c.getContext("2d");
    g.setTransform(dpr, 0, 0, dpr, 0, 0);
    g.clearRect(0, 0, width, height);
    g.font = "12px system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif";
    g.textBaseline = "middle";
    return { g, width };
  }
  const scale = (v, width) => (t) => pad.left + ((t - v.a) / (v.b - v.a)) * (width - pad.left - pad.right);
  const unscale = (v, width) => (x) => v.a + ((x - pad.left) / (width - pad.left - pad.right)) * (v.b - v.a);

  function ticks(v, width) {
    const want = (v.b - v.a) / Math.max(2, (width - pad.left) / 110);
    const steps = [10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 15000, 30000, 60000, 120000, 300000, 600000, 1800000, 3600000];
    const step = steps.find((s) => s >= want) || 7200000;
    const all = [];
    for (let t = Math.ceil(v.a / step) * step; t <= v.b; t += step) all.push(t);
    return { all, digits: step < 100 ? 2 : step < 1000 ? 1 : 0 };
  }
  const clip = (g, s, max) => {
    if (g.measureText(s).width <= max) return s;
    while (s && g.measureText(s + "…").width > max) s = s.slice(0, -1);
    return s && s + "…";
  };

  function draw() {
    const { g, width } = canvas(lanes, rows.height);
    const x = scale(view, width), right = width - pad.right;
    const within = (a, b) => b >= view.a && a <= view.b;
    const bar = (a, b) => { const l = Math.max(x(a), pad.left), r = Math.min(x(b), right); return [l, Math.max(r - l, 1)]; };

    const t = ticks(view, width);
    g.textAlign = "center";
    for (const at of t.all) {
      g.fillStyle = colors.line;
      g.fillRect(Math.round(x(at)), pad.axis - 4, 1, rows.height - pad.axis);
      g.fillStyle = colors.dim;
      g.fillText(clock(at, t.digits), Math.max(x(at), pad.left + 12), 9);
    }
    for (const f of faults) {
      if (f.order || !within(f.a, f.b)) continue;
      const [l, w] = bar(f.a, f.b);
      g.fillStyle = "rgba(" + colors.band + "," + (f.nodes.length >= data.nodes.length / 2 ? 0.2 : 0.11) + ")";
      g.fillRect(l, keyTop - 3, w, rows.height - keyTop);
    }
    for (const row of rows) {
      g.textAlign = "right";
      g.fillStyle = row.kind === "faults" && row.node >= 0 ? nodeColor(row.node) : colors.dim;
      g.fillText(clip(g, row.label, pad.left - 14), pad.left - 10, row.y + Math.min(row.h, 18) / 2 + (row.kind === "rate" ? 12 : 0));
      g.textAlign = "left";
      if (row.kind === "rate") rate(g, row, x, within, right);
      if (row.kind === "leader") leaders(g, row, bar, within);
      if (row.kind === "faults") {
        g.fillStyle = colors.line;
        g.fillRect(pad.left, row.y + row.h - 1, right - pad.left, 1);
        for (const f of row.faults) {
          if (!within(f.a, f.b)) continue;
          const [l, w] = bar(f.a, f.b);
          const y = row.y + 1 + f.level * 15;
          g.globalAlpha = f.order ? 0.25 : 0.5;
          g.fillStyle = colors.fault;
          g.fillRect(l, y, w, 13);
          g.globalAlpha = 1;
          if (w > 22) {
            g.fillStyle = colors.text;
            g.font = "11px system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif";
            g.fillText(clip(g, f.name, w - 6), l + 4, y + 7);
            g.font = "12px system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif";
          }
        }
      }
      if (row.kind === "key") {
        g.fillStyle = colors.line;
        g.fillRect(pad.left, row.y + 11, right - pad.left, 1);
        let until = -1;
        for (const r of row.key.runs) {
          if (!within(r.a, r.b)) continue;
          const [l, w] = bar(r.a, r.b);
          g.globalAlpha = alone >= 0 && r.n !== alone ? 0.14 : 1;
          g.fillStyle = nodeColor(r.n);
          g.fillRect(l, row.y + 3, w, 16);
          if (w > 4) { // where one run ends and the next begins
            g.fillStyle = colors.card;
            g.fillRect(l + w - 1, row.y + 3, 1, 16);
          }
          if (w > 60) {
            g.fillStyle = colors.on;
            g.font = "11px system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif";
            g.fillText(clip(g, (r.n < 0 ? r.p : data.nodes[r.n]) + " #" + (r.t % 1099511627776), w - 10), l + 6, row.y + 11.5);
            g.font = "12px system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif";
          }
          g.globalAlpha = 1;
        }
        for (const r of row.key.runs) { // two owners at once
          if (r.a < until && within(r.a, Math.min(r.b, until))) {
            const [l, w] = bar(r.a, Math.min(r.b, until));
            g.fillStyle = colors.bad;
            g.fillRect(l, row.y + 1, w, 4);
            g.fillRect(l, row.y + 17, w, 4);
          }
          until = Math.max(until, r.b);
        }
      }
    }
    for (const m of list(data.marks)) {
      if (!within(m.a, m.a)) continue;
      const row = rows.find((r) => r.kind === "key" && r.label === m.key);
      const px = x(m.a);
      g.strokeStyle = g.fillStyle = colors.bad;
      g.fillRect(Math.round(px), pad.axis, 1.5, rows.height - pad.axis - 8);
      const y = row ? row.y : pad.axis;
      g.beginPath();
      g.moveTo(px - 5, y - 2); g.lineTo(px + 5, y - 2); g.lineTo(px, y + 6);
      g.fill();
    }
    drawOverview();
  }

  function rate(g, row, x, within, right) {
    const r = data.rate, all = r.done.map((d, i) => d + r.refused[i] + r.uncertain[i]), most = Math.max(1, ...all);
    const h = row.h - 4;
    for (let i = 0; i < all.length; i++) {
      const a = i * r.step, b = a + r.step;
      if (!within(a, b)) continue;
      const l = Math.max(x(a), pad.left), w = Math.max(Math.min(x(b), right) - l - 0.5, 0.5);
      let y = row.y + row.h;
      for (const [n, color] of [[r.done[i], colors.good], [r.refused[i], colors.dim], [r.uncertain[i], colors.bad]]) {
        const d = (n / most) * h;
        g.globalAlpha = 0.75;
        g.fillStyle = color;
        g.fillRect(l, y - d, w, d);
        y -= d;
      }
      g.globalAlpha = 1;
    }
    g.fillStyle = colors.dim;
    g.textAlign = "right";
    g.fillText(String(Math.round(most / (r.step / 1000))), pad.left - 10, row.y + 4);
    g.textAlign = "left";
  }

  function leaders(g, row, bar, within) {
    const all = list(data.leaders);
    all.forEach((l, i) => {
      const b = i + 1 < all.length ? all[i + 1].a : data.length;
      if (!within(l.a, b)) return;
      const [px, w] = bar(l.a, b);
      g.globalAlpha = alone >= 0 && l.n !== alone ? 0.14 : 1;
      g.fillStyle = nodeColor(l.n);
      g.fillRect(px, row.y + 4, w, 8);
      g.fillStyle = colors.card;
      g.fillRect(px + w - 1, row.y + 4, 1, 8);
      g.globalAlpha = 1;
    });
  }

  function drawOverview() {
    const { g, width } = canvas(overview, 40);
    const x = scale(whole, width);
    g.fillStyle = colors.soft;
    g.fillRect(pad.left, 4, width - pad.left - pad.right, 32);
    const keys = data.keys.filter((k) => k.wanted), h = 28 / Math.max(1, keys.length);
    keys.forEach((k, i) => {
      for (const r of k.runs) {
        g.fillStyle = nodeColor(r.n);
        g.fillRect(x(r.a), 6 + i * h, Math.max(x(r.b) - x(r.a), 0.5), Math.max(h - 0.6, 0.6));
      }
    });
    for (const m of list(data.marks)) { g.fillStyle = colors.bad; g.fillRect(x(m.a) - 1, 2, 2.5, 36); }
    if (view.a > whole.a || view.b < whole.b) {
      g.fillStyle = colors.card;
      g.globalAlpha = 0.72;
      g.fillRect(pad.left, 4, x(view.a) - pad.left, 32);
      g.fillRect(x(view.b), 4, width - pad.right - x(view.b), 32);
      g.globalAlpha = 1;
      g.strokeStyle = colors.text;
      g.strokeRect(x(view.a) + 0.5, 3.5, Math.max(x(view.b) - x(view.a) - 1, 2), 33);
    }
  }

  function show(a, b) {
    const least = 20, width = Math.min(Math.max(b - a, least), whole.b - whole.a);
    a = Math.min(Math.max(a, whole.a), whole.b - width);
    view = { a, b: a + width };
    draw();
  }
  const zoom = (by, at) => {
    if (at === undefined) at = (view.a + view.b) / 2;
    show(at - (at - view.a) * by, at + (view.b - at) * by);
  };

  // What is under the pointer, as lines of text.
  function found(px, py) {
    const row = rows.find((r) => py >= r.y && py < r.y + r.h);
    if (!row || px < pad.left) return null;
    const width = lanes.clientWidth, at = unscale(view, width)(px), near = ((view.b - view.a) / (width - pad.left)) * 3;
    const hit = (a, b) => at >= a - near && at <= b + near;
    if (row.kind === "key") {
      const runs = row.key.runs, r = runs.filter((r) => hit(r.a, r.b)).sort((p, q) => (p.b - p.a) - (q.b - q.a))[0];
      if (r) {
        const i = runs.indexOf(r), gap = i > 0 ? r.a - Math.max(...runs.slice(0, i).map((p) => p.b)) : NaN;
        return [row.label + " in " + r.p, "token " + r.t, clock(r.a, 3) + " to " + clock(r.b, 3) + ", " + took(r.b - r.a), "ended: " + r.e, gap >= 0 ? "nobody ran it for " + took(gap) + " before" : gap < 0 ? "overlaps the run before by " + took(-gap) : ""];
      }
      const next = runs.find((r) => r.a > at), last = runs.filter((r) => r.b < at).pop();
      if (row.key.wanted && (next || last)) {
        const a = last ? last.b : 0, b = next ? next.a : data.length;
        return [row.label + ": nobody", clock(a, 3) + " to " + clock(b, 3) + ", " + took(b - a)];
      }
    }
    if (row.kind === "faults") {
      const f = row.faults.find((f) => hit(f.a, f.b) && Math.floor((py - row.y - 1) / 15) === f.level) || row.faults.find((f) => hit(f.a, f.b));
      if (f) return [f.name + " " + f.nodes.map((n) => data.nodes[n]).join(" "), clock(f.a, 3) + " to " + clock(f.b, 3) + ", " + took(f.b - f.a), f.text];
    }
    if (row.kind === "leader") {
      const l = list(data.leaders).filter((l) => l.a <= at + near).pop();
      if (l) return ["leader " + (data.nodes[l.n] || "?"), "since " + clock(l.a, 3)];
    }
    if (row.kind === "rate") {
      const r = data.rate, i = Math.floor(at / r.step);
      if (i >= 0 && i < r.done.length) return ["calls from " + clock(i * r.step) + " to " + clock((i + 1) * r.step), r.done[i] + " done, " + r.refused[i] + " refused, " + r.uncertain[i] + " without an answer"];
    }
    return null;
  }

  function point(e) {
    const box = lanes.getBoundingClientRect(), px = e.clientX - box.left, py = e.clientY - box.top;
    const lines = found(px, py);
    tip.hidden = !lines;
    if (!lines) return;
    tip.replaceChildren(...lines.filter(Boolean).map((s, i) => {
      const el = document.createElement(i ? "span" : "b");
      el.textContent = s;
      if (i) el.style.display = "block";
      return el;
    }));
    tip.style.left = Math.max(0, Math.min(px + 14, box.width - tip.offsetWidth - 4)) + "px";
    tip.style.top = (py + 18 + tip.offsetHeight > box.height ? Math.max(0, py - tip.offsetHeight - 10) : py + 18) + "px";
  }

  let drag = null;
  lanes.addEventListener("pointerdown", (e) => { drag = { x: e.clientX, view: { ...view } }; lanes.setPointerCapture(e.pointerId); lanes.classList.add("moving"); });
  lanes.addEventListener("pointermove", (e) => {
    if (!drag) return point(e);
    tip.hidden = true;
    const by = ((drag.x - e.clientX) / (lanes.clientWidth - pad.left - pad.right)) * (drag.view.b - drag.view.a);
    show(drag.view.a + by, drag.view.b + by);
  });
  lanes.addEventListener("pointerup", () => { drag = null; lanes.classList.remove("moving"); });
  lanes.addEventListener("pointerleave", () => { tip.hidden = true; });
  lanes.addEventListener("dblclick", (e) => zoom(0.4, unscale(view, lanes.clientWidth)(e.clientX - lanes.getBoundingClientRect().left)));
  lanes.addEventListener("wheel", (e) => {
    if (!e.ctrlKey && !e.metaKey) return;
    e.preventDefault();
    zoom(e.deltaY > 0 ? 1.25 : 0.8, unscale(view, lanes.clientWidth)(e.clientX - lanes.getBoundingClientRect().left));
  }, { passive: false });
  lanes.addEventListener("keydown", (e) => {
    const step = (view.b - view.a) / 5;
    const does = { ArrowLeft: () => show(view.a - step, view.b - step), ArrowRight: () => show(view.a + step, view.b + step), "+": () => zoom(0.6), "-": () => zoom(1.6), Home: () => show(whole.a, whole.b) }[e.key];
    if (does) { e.preventDefault(); does(); }
  });
  let brush = null;
  const overviewAt = (e) => unscale(whole, overview.clientWidth)(e.clientX - overview.getBoundingClientRect().left);
  overview.addEventListener("pointerdown", (e) => { brush = overviewAt(e); overview.setPointerCapture(e.pointerId); });
  overview.addEventListener("pointermove", (e) => { if (brush !== null) { const at = overviewAt(e); if (Math.abs(at - brush) > 50) show(Math.min(at, brush), Math.max(at, brush)); } });
  overview.addEventListener("pointerup", (e) => {
    if (brush !== null && Math.abs(overviewAt(e) - brush) <= 50) { const half = (view.b - view.a) / 2; show(brush - half, brush + half); }
    brush = null;
  });
  for (const b of document.querySelectorAll("[data-zoom]")) {
    b.addEventListener("click", () => ({ in: () => zoom(0.5), out: () => zoom(2), all: () => show(whole.a, whole.b) })[b.dataset.zoom]());
  }
  for (const a of document.querySelectorAll("[data-at]")) {
    a.addEventListener("click", () => { const at = Number(a.dataset.at); show(at - 6000, at + 6000); });
  }

  const legend = document.getElementById("legend");
  data.nodes.forEach((n, i) => {
    const b = document.createElement("button"), c = document.createElement("i");
    b.type = "button";
    b.setAttribute("aria-pressed", "false");
    c.style.background = "var(--n" + (i % 10) + ")";
    b.append(c, n);
    b.addEventListener("click", () => {
      alone = alone === i ? -1 : i;
      legend.querySelectorAll("button").forEach((o, j) => o.setAttribute("aria-pressed", String(j === alone)));
      draw();
    });
    legend.append(b);
  });
  if (data.keys.some((k) => k.runs.some((r) => r.n < 0))) {
    const s = document.createElement("button"), c = document.createElement("i");
    s.type = "button"; s.disabled = true;
    c.style.background = "var(--own)";
    s.append(c, "clients over HTTP");
    legend.append(s);
  }

  const svgNS = "http://www.w3.org/2000/svg";
  function svg(name, attributes, text) {
    const el = document.createElementNS(svgNS, name);
    for (const k in attributes) el.setAttribute(k, attributes[k]);
    if (text !== undefined) el.textContent = text;
    return el;
  }

  // Strips: one dot for each time that it took, on a logarithmic axis.
  for (const td of document.querySelectorAll("td.strip")) {
    const values = (td.dataset.values || "").replace(/[[\]]/g, "").split(/\s+/).filter(Boolean).map(Number);
    const marks = td.dataset.marks.split(" ").map(Number), bound = Number(td.dataset.bound);
    const low = Math.log10(0.1), high = Math.log10(60000), w = 400;
    const x = (v) => ((Math.log10(Math.min(Math.max(v, 0.1), 60000)) - low) / (high - low)) * w;
    const t = svg("svg", { viewBox: "0 0 400 40" });
    for (const [v, text] of [[1, "1 ms"], [10, "10"], [100, "100"], [1000, "1 s"], [10000, "10 s"]]) {
      t.append(svg("line", { x1: x(v), x2: x(v), y1: 4, y2: 26, stroke: "var(--line)" }), svg("text", { x: x(v), y: 37, "text-anchor": "middle" }, text));
    }
    t.append(svg("line", { x1: 0, x2: w, y1: 15, y2: 15, stroke: "var(--line)" }));
    for (const v of values) t.append(svg("circle", { cx: x(v), cy: 15, r: 3.2, fill: "var(--n0)", "fill-opacity": Math.max(0.06, Math.min(0.7, 12 / values.length)) }));
    t.append(svg("line", { x1: x(marks[0]), x2: x(marks[0]), y1: 7, y2: 23, stroke: "var(--text)", "stroke-width": 2 }));
    t.append(svg("line", { x1: x(marks[1]), x2: x(marks[1]), y1: 9, y2: 21, stroke: "var(--text)", "stroke-width": 1.5, "stroke-dasharray": "3 2" }));
    if (bound > 0) t.append(svg("line", { x1: x(bound), x2: x(bound), y1: 3, y2: 27, stroke: "var(--bad)", "stroke-width": 2 }));
    td.append(t);
  }

  // Small charts of what the nodes had of the machine.
  const gauges = document.getElementById("gauges");
  if (gauges) {
    for (const [field, title] of [["m", "memory, MiB"], ["g", "goroutines"], ["h", "open files and sockets"]]) {
      const points = data.gauges.filter((p) => p[field] >= 0);
      if (!points.length) continue;
      const top = Math.max(...points.map((p) => p[field])) * 1.08, w = 400, h = 120, l = 34;
      const x = (t) => l + (t / whole.b) * (w - l - 4), y = (v) => h - 16 - (v / top) * (h - 24);
      const s = svg("svg", { viewBox: `0 0 ${w} ${h}` });
      for (const part of [0, 0.5, 1]) {
        const v = (top / 1.08) * part;
        s.append(svg("line", { x1: l, x2: w - 4, y1: y(v), y2: y(v), stroke: "var(--line)" }), svg("text", { x: l - 6, y: y(v) + 3, "text-anchor": "end" }, Math.round(v)));
      }
      for (const t of [0, whole.b / 2, whole.b]) s.append(svg("text", { x: x(t), y: h - 2, "text-anchor": t ? (t === whole.b ? "end" : "middle") : "start" }, clock(t)));
      data.nodes.forEach((_, i) => {
        const mine = points.filter((p) => p.n === i).sort((p, q) => p.a - q.a);
        if (mine.length) s.append(svg("polyline", { points: mine.map((p) => x(p.a).toFixed(1) + "," + y(p[field]).toFixed(1)).join(" "), fill: "none", stroke: `var(--n${i % 10})`, "stroke-width": 1.6, "stroke-linejoin": "round" }));
      });
      const f = document.createElement("figure"), c = document.createElement("figcaption");
      c.textContent = title;
      f.append(c, s);
      gauges.append(f);
    }
  }

  const again = () => { readColors(); draw(); };
  window.addEventListener("resize", again);
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);
  again();
})();
