"""A member of a group, in Python:  MIW_ADDR=n1/miw.sock python3 member.py GROUP"""
import http.client, json, os, signal, socket, sys, time

ADDR, GROUP = os.environ.get("MIW_ADDR", "miw-data/miw.sock"), sys.argv[1] if sys.argv[1:] else sys.exit(__doc__)
now = lambda: time.clock_gettime(time.CLOCK_BOOTTIME)  # goes on while the machine sleeps

def call(method, path, **body):  # through the unix socket of a node
    c = http.client.HTTPConnection("miwnode")
    c.sock = socket.socket(socket.AF_UNIX)
    c.sock.settimeout(1), c.sock.connect(ADDR)
    c.request(method, path, json.dumps(body))
    answer = c.getresponse()
    return answer.status, json.loads(answer.read() or "{}")

def step(workload, token):  # yours: far shorter than a second, and every write carries the token
    os.write(1, f"runs {workload} {token} {now()}\n".encode())

signal.signal(signal.SIGTERM, lambda *_: sys.exit())
try: session = call("POST", "/v1/sessions", ttl="5s", name=f"python-{os.getpid()}", instance=True)[1]["session_id"]
except OSError as e: sys.exit(f"no node answers at {ADDR}: {e}")
status, kept = call("POST", f"/v1/groups/{GROUP}/join", session_id=session)
if status != 200: sys.exit(f"can't join: {kept['error']['message']}")
granted, trusted = {}, 0  # what runs here, under which token; and until when it may
try:
    while status != 410:  # the session is lost
        sent = now()  # trust counts from here, however late the answer is read
        try:
            status, kept = call("POST", f"/v1/sessions/{session}/keepalive")
            if status == 200:
                mine = [l for l in kept["leases"] if l.get("group") == GROUP]
                granted = {l["workload"]: l["token"] for l in mine if l["state"] == "held"}
                trusted = sent + float(kept["trusted_for"].replace("ms", "e-3").rstrip("s"))  # "4.5s", "900ms"
                for l in (l for l in mine if l["state"] != "held"):  # it has stopped, and is given back
                    call("POST", "/v1/leases/release", key=l["key"], token=l["token"], session_id=session)
        except (OSError, http.client.HTTPException): pass  # asked again; what is granted goes on while it is trusted
        for workload, token in granted.items():
            if now() < trusted: step(workload, token)
        time.sleep(0.2)
finally: call("DELETE", f"/v1/sessions/{session}")
sys.exit(f"the session was lost: {kept['error']['message']}")
