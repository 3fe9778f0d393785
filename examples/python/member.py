"""A member of a group, in Python:  MIW_ADDR=n1/miw.sock python3 member.py GROUP   (or MIW_ADDR=http://127.0.0.1:7480)"""
import http.client, json, os, re, signal, socket, sys, threading, time

ADDR, GROUP, UNITS = os.environ.get("MIW_ADDR", "miw-data/miw.sock"), sys.argv[1], {"h": 3600, "m": 60, "s": 1, "ms": 0.001}
runs, trusted = {}, 0.0  # what runs here, and until when it may
now = lambda: time.clock_gettime(time.CLOCK_BOOTTIME)  # goes on while the machine sleeps

def call(method, path, **body):
    c = http.client.HTTPConnection(ADDR.split("//")[-1], timeout=2)
    if "://" not in ADDR:
        c = http.client.HTTPConnection("miwnode")
        c.sock = socket.socket(socket.AF_UNIX)
        c.sock.settimeout(2), c.sock.connect(ADDR)
    c.request(method, path, json.dumps(body), {"Authorization": "Bearer " + os.environ.get("MIW_API_TOKEN", "")})
    answer = c.getresponse()
    return answer.status, json.loads(answer.read() or "{}")

def work(workload, token, stop):  # yours: in short steps, and every write carries the token
    while not stop.is_set() and now() < trusted:
        os.write(1, f"runs {workload} {token} {now()}\n".encode())
        stop.wait(0.1)

def tend(session):  # one keep-alive; False when the session is lost
    global trusted
    sent = now()  # trust counts from here, however late the answer is read
    try:
        status, kept = call("POST", f"/v1/sessions/{session}/keepalive")
    except (OSError, http.client.HTTPException):
        return now() < trusted  # tried again while there is trust; without it everything stops by itself
    if status != 200:
        return status != 410 and now() < trusted
    trusted = sent + sum(float(n) * UNITS[u] for n, u in re.findall(r"([\d.]+)(h|ms|m|s)", kept["trusted_for"]))
    held = {l["key"]: l for l in kept["leases"] if l["state"] == "held" and l.get("group") == GROUP}
    fresh = held.keys() - runs.keys()
    for key, (token, stop, thread) in list(runs.items()):
        if key not in held or held[key]["token"] != token: stop.set()
        if not thread.is_alive():  # only what has ended is given back
            runs.pop(key), call("POST", "/v1/leases/release", key=key, token=token, session_id=session)
    for key in fresh:
        args = held[key]["workload"], held[key]["token"], threading.Event()
        runs[key] = args[1], args[2], threading.Thread(target=work, args=args)
        runs[key][2].start()
    return True

signal.signal(signal.SIGTERM, lambda *_: sys.exit())
session = call("POST", "/v1/sessions", ttl="5s", name=f"python-{os.getpid()}", instance=True)[1]["session_id"]
status, answer = call("POST", f"/v1/groups/{GROUP}/join", session_id=session)
try:
    while status == 200 and tend(session): time.sleep(0.3)
finally:
    for _, stop, thread in runs.values(): stop.set(), thread.join()
    call("DELETE", f"/v1/sessions/{session}")
sys.exit("the session was lost; start again" if status == 200 else f"can't join: {answer}")
