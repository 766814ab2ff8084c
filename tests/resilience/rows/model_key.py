"""The model's key is outside of the sandbox: looked for inside, while an agent works there.

Each way to look also looks for the sandbox's own key, which is there, so that looking is seen to work.
"""

from typing import Final

from tests.live.scripts import run as script_of
from tests.resilience.book import Figure, Ground, Half, Outcome, Row, zero
from tests.resilience.real import RealServer, real_server

METHODS: Final = 20
LOOK: Final = r"""
import base64, glob, json, os, re, subprocess, sys, urllib.request
key, own = (base64.b64decode(text)[::-1] for text in sys.argv[1:3])
def forms(text):
    yield text
    yield text[::-1]
    yield text.hex().encode()
    for skip in range(3):
        yield base64.b64encode(b"x" * skip + text)[4 if skip else 0:-4]
    yield "".join(map(chr, text)).encode("utf-16-le")
NEEDLES = {"model": list(forms(key)), "own": [own]}
# So that this program does not find what it was told.
ME = {str(os.getpid()), str(os.getppid())}
found, looked = {}, {}
def look(way, data):
    looked[way] = looked.get(way, 0) + bool(data)
    for name, needles in NEEDLES.items():
        if any(needle in data for needle in needles):
            found.setdefault(name, [])
            if way not in found[name]:
                found[name].append(way)
def read(path, most=64 << 20):
    try:
        with open(path, "rb") as file:
            return file.read(most)
    except OSError:
        return b""
def walk(way, top):
    looked.setdefault(way, 0)
    for folder, folders, files in os.walk(top):
        folders[:] = [one for one in folders if one not in ("proc", "sys")]
        look(way, "\n".join(folders + files).encode(errors="replace"))
        for path in (os.path.join(folder, name) for name in files):
            if os.path.isfile(path) and path != "/tmp/probe.py" and os.path.getsize(path) < 32 << 20:
                look(way, read(path))
def said(way, *command):
    looked.setdefault(way, 0)
    try:
        done = subprocess.run(command, capture_output=True, timeout=60)
        look(way, done.stdout + done.stderr)
    except (OSError, subprocess.TimeoutExpired):
        pass
def asked(way, path):
    looked.setdefault(way, 0)
    for port in PORTS:
        request = urllib.request.Request(f"http://127.0.0.1:{port}{path}")
        request.add_header("X-Session-API-Key", own.decode())
        request.add_header("X-Expose-Secrets", "plaintext")
        try:
            opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
            look(way, opener.open(request, timeout=20).read())
        except Exception as exc:
            look(way, str(exc).encode())
pids = [pid for pid in os.listdir("/proc") if pid.isdigit() and pid not in ME]
PORTS = {int(line.split()[1].rpartition(":")[2], 16) for name in ("tcp", "tcp6")
         for line in read(f"/proc/net/{name}").decode().splitlines()[1:] if line.split()[3] == "0A"}
walk("workspace", os.getcwd())
walk("around the workspace", os.path.dirname(os.getcwd()))
walk("home", os.path.expanduser("~"))
walk("temporary files", "/tmp")
walk("var", "/var")
walk("run", "/run")
walk("etc", "/etc")
walk("shared memory", "/dev/shm")
for pid in pids:
    look("environments", read(f"/proc/{pid}/environ"))
    look("command lines", read(f"/proc/{pid}/cmdline"))
    for name in glob.glob(f"/proc/{pid}/fd/*"):
        try:
            if os.path.isfile(name):
                look("open files", read(name))
        except OSError:
            pass
    for start, end in re.findall(r"^([0-9a-f]+)-([0-9a-f]+) r", read(f"/proc/{pid}/maps").decode(), re.M):
        try:
            with open(f"/proc/{pid}/mem", "rb", 0) as memory:
                memory.seek(int(start, 16))
                look("memory", memory.read(min(int(end, 16) - int(start, 16), 64 << 20)))
        except (OSError, ValueError, OverflowError):
            pass
said("shell", "bash", "-lc", "env; set; history; alias")
said("git", "git", "config", "--list", "--show-origin")
said("tmux", "tmux", "show-environment", "-g")
said("processes", "ps", "auxeww")
asked("agent server: conversations", "/api/conversations/search")
asked("agent server: settings", "/api/settings")
asked("agent server: profiles", "/api/profiles")
asked("agent server: events", f"/api/conversations/{base64.b64decode(sys.argv[3]).decode()}/events/search")
looked.setdefault("memory", 0), looked.setdefault("open files", 0)
print(json.dumps({"found": found, "looked": looked}))
"""
"""Looks for two texts, which are told backwards, in all that a sandbox sees."""


async def _look(server: RealServer) -> tuple[dict[str, list[str]], dict[str, int], list[str]]:
    commands = ("echo working", "git init -q . && env > seen", "sleep 1")
    name = await server.client.start_conversation(script_of(*commands))
    seen = await server.client.wait_for_execution(name, "finished")
    inside = server.of({"id": seen["sandbox_id"], "session_api_key": seen["session_api_key"]})
    key = server.model.key.reveal()
    said = await inside.run(LOOK, key[::-1], inside.key[::-1], name)
    told = [
        (await server.client.get(path)).body
        for path in (
            f"/api/v1/conversation/{name}/events/search",
            f"/api/v1/app-conversations/{name}/download",
        )
    ]
    wrong = ["the events tell it"] if any(key.encode() in body for body in told) else []
    if not any(request.get("tools") for request in server.model.requests):
        wrong.append("the model was never asked")
    return said["found"], said["looked"], wrong


async def run(ground: Ground) -> Outcome:
    async with real_server(ground.place("server")) as server:
        found, looked, wrong = await _look(server)
        sandbox = (await server.client.get("/api/v1/sandboxes/search")).json()["items"][0]
    ways = found.get("model", [])
    problems = [f"found: {way}" for way in ways] + wrong
    if not found.get("own"):
        problems.append("not even the sandbox's own key was found")
    return Outcome(
        did=(
            f"a conversation with a real agent server at the level {sandbox['isolation']}; the key"
            f" looked for in {len(looked)} ways, also reversed, in hexadecimal, base64 and UTF-16,"
            f" in {sum(looked.values()):,} things; the sandbox's own key was found in"
            f" {len(found.get('own', []))} of them"
        ),
        figures=(
            Figure(what="ways to look", value=len(looked), at_least=METHODS),
            zero("that found it", problems),
        ),
        problems=tuple(problems),
    )


ROW: Final = Row(name="model-key", half=Half.IN, promise="model key outside the sandbox", run=run)
