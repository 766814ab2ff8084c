"""Git hosts in the test's own process: issues, comments and pull requests beside a real git server.

One repository, `octo/demo`, as GitHub, GitLab, Forgejo and Bitbucket show it. Paths, names of fields and states
are those of their published descriptions, and so is what a call may carry (`issue_host_calls`); what nobody wrote down is
answered with 501 and kept in `unexpected`.
"""

import hmac
import json
import re
from pathlib import Path
from typing import Any, Final, Self

import aiohttp
from aiohttp import web

from agentsvc.base.values import Secret
from tests.git_server import GitServer, run_git
from tests.issue_host_calls import CARRIES

REPOSITORY: Final = "octo/demo"
GOOD: Final = "host-token-of-tests"
BOT: Final = "robot"
_ROOTS: Final = {
    "github": "/api/v3/repos/octo/demo",
    "gitlab": "/api/v4/projects/octo%2Fdemo",
    "forgejo": "/api/v1/repos/octo/demo",
    "bitbucket": "/2.0/repositories/octo/demo",
}
_BY_ID: Final = {"github": "/api/v3/repositories/42", "gitlab": "/api/v4/projects/42"}
"""Where a repository that was renamed is found by its number."""
_AUTHORIZATION: Final = {"forgejo": f"token {GOOD}"}
_TIME: Final = "2099-01-01T00:00:{:02}Z"
type Json = dict[str, Any]


class IssueHost:
    """One host with one repository; use it as an async context manager.

    `writers` may write to the repository, by the name or id that the host knows them by. `fail` answers the next
    requests, one each; with `lose_answers`, what is asked for is done, and the connection cut.
    """

    def __init__(self, kind: str, root: Path) -> None:
        self.kind = kind
        self.name = REPOSITORY
        """What deliveries call the repository."""
        self.git = GitServer(root, Secret(GOOD))
        self.writers = {"ada"}
        self.issue: Json = {"title": "It breaks", "text": "On Mondays", "labels": [], "at": 1}
        self.labelled_by: list[str] = []
        self.comments: list[Json] = []
        self.pulls: list[Json] = []
        self.pull_comments: list[Json] = []
        self.failed_checks: list[str] = []
        self.created = _TIME.format(0)
        """When the issue and the pull requests were opened."""
        self.hooks: list[Json] = []
        """The webhooks that were made here, which are told of what is done here by requests."""
        self._news: list[tuple[str, Json]] = []
        self.fail: list[web.Response] = []
        self.lose_answers = 0
        self.trouble = ""
        """`renamed`, `moved` to another host, `deleted`, `revoked`, `down`, `busy`, or a text that is answered to everything."""
        self.elsewhere = ""
        self.requests: list[str] = []
        self.unexpected: list[str] = []
        self._runner: web.AppRunner | None = None
        self._session: aiohttp.ClientSession | None = None
        self._ids = iter(range(100, 1000))
        self.url = ""

    async def __aenter__(self) -> Self:
        await self.git.start()
        await self.git.add_repository(REPOSITORY, {"README.md": "Hello"})
        self._session = aiohttp.ClientSession(auto_decompress=False)
        app = web.Application(client_max_size=64 * 1024 * 1024)
        app.router.add_route("*", "/octo/{path:.*}", self.serve_git)
        app.router.add_route("*", "/{path:.*}", self.handle)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._runner is not None
        assert self._session is not None
        await self._runner.cleanup()
        await self._session.close()
        await self.git.stop()

    async def branches(self) -> dict[str, str]:
        """Return the commit of each branch of the repository."""
        bare = self.git.root / f"{REPOSITORY}.git"
        told = await run_git("for-each-ref", "--format=%(refname:short) %(objectname)", cwd=bare)
        return dict(line.split() for line in told.splitlines())

    async def file(self, branch: str, name: str) -> str:
        """Return a file of a branch."""
        return await run_git("show", f"{branch}:{name}", cwd=self.git.root / f"{REPOSITORY}.git")

    def label(self, name: str, by: str) -> None:
        """Give the issue a label."""
        self.issue["labels"].append(name)
        self.labelled_by.append(by)
        self.issue["at"] += 1

    def say(self, text: str, by: str, *, on_pull: bool = False, inline: bool = False) -> Json:
        """Write a comment, and return it."""
        made = {"id": next(self._ids), "text": text, "by": by, "inline": inline}
        (self.pull_comments if on_pull else self.comments).append(made)
        self.issue["at"] += 1
        return made

    def own_comments(self, *, on_pull: bool = False) -> list[str]:
        """Return what the server has written below the issue, or the pull request."""
        comments = self.pull_comments if on_pull else self.comments
        return [one["text"] for one in comments if one["by"] == BOT]

    async def open_pull(self, text: str = "", **files: str) -> None:
        """Have somebody open a pull request of a branch `topic` with some files."""
        work = self.git.root / f"{REPOSITORY}.work"
        await run_git("checkout", "--quiet", "-b", "topic", "main", cwd=work)
        for name, content in files.items():
            (work / name).write_text(content)
        await run_git("add", "--all", cwd=work)
        identity = ("-c", "user.name=Eve", "-c", "user.email=eve@example.com")
        await run_git(*identity, "commit", "--quiet", "-m", "Change", cwd=work)
        await run_git("push", "--quiet", str(work.with_suffix(".git")), "topic", cwd=work)
        self.add_pull("topic", text)

    def add_pull(self, branch: str, text: str, *, is_of_fork: bool = False) -> None:
        """Have somebody open a pull request of a branch that is there, or of a fork's."""
        sent: Json = {"title": "A change", "head": branch, "base": "main", "body": text}
        if self.kind == "gitlab":
            sent = {"title": "A change", "source_branch": branch, "target_branch": "main"}
            sent["description"] = text
        if self.kind == "bitbucket":
            branches = {"source": {"branch": {"name": branch}}}
            branches["destination"] = {"branch": {"name": "main"}}
            sent = {"title": "A change", "description": text, **branches}
        self.pulls.append({"sent": sent, "state": self._open_as, "is_of_fork": is_of_fork})

    @property
    def _open_as(self) -> str:
        return {"gitlab": "opened", "bitbucket": "OPEN"}.get(self.kind, "open")

    # Deliveries

    def delivery(self, what: str, secret: str, **about: Any) -> tuple[dict[str, str], bytes]:
        """Return headers and body of a delivery: `opened`, `labelled`, `said`, `reviewed`, `closed` or `failed`."""
        event, body = getattr(self, f"_{self.kind}_{what}")(**about)
        data = json.dumps(body).encode()
        signature = hmac.digest(secret.encode(), data, "sha256").hex()
        headers = {
            "github": {"X-GitHub-Event": event, "X-Hub-Signature-256": f"sha256={signature}"},
            "gitlab": {"X-Gitlab-Event": event, "X-Gitlab-Token": secret},
            "forgejo": {"X-Forgejo-Event": event, "X-Forgejo-Signature": signature},
            "bitbucket": {"X-Event-Key": event, "X-Hub-Signature": f"sha256={signature}"},
        }[self.kind]
        return {"Content-Type": "application/json", **headers}, data

    def _github_labelled(self, by: str) -> tuple[str, Json]:
        label = self.issue["labels"][-1]
        body = {"action": "labeled", "label": {"name": label}, "sender": {"login": by}}
        return "issues", {
            **body,
            "issue": self._issue(),
            "repository": {"full_name": self.name.title()},
        }

    def _github_opened(self, *, is_pull: bool) -> tuple[str, Json]:
        body = {"action": "opened", "sender": {"login": "eve"}}
        if is_pull:
            return "pull_request", {**body, "pull_request": {"number": 8}}
        return "issues", {**body, "issue": self._issue()}

    _forgejo_opened = _github_opened

    def _gitlab_opened(self, *, is_pull: bool) -> tuple[str, Json]:
        about = {"iid": 8 if is_pull else 7, "action": "open"}
        kind = "merge_request" if is_pull else "issue"
        body = {"object_kind": kind, "user": {"id": "eve"}, "object_attributes": about}
        return "Merge Request Hook" if is_pull else "Issue Hook", body

    def _bitbucket_opened(self, *, is_pull: bool) -> tuple[str, Json]:
        if is_pull:
            return "pullrequest:created", {"pullrequest": {"id": 8}}
        return "issue:created", {"issue": {"id": 7}}

    def _github_said(self, comment: Json, *, on_pull: bool = False) -> tuple[str, Json]:
        issue = {"number": 8, "pull_request": {"url": "x"}} if on_pull else self._issue()
        return "issue_comment", {
            "action": "created",
            "issue": issue,
            "comment": self._comment(comment),
            "sender": {"login": comment["by"]},
            "repository": {"full_name": self.name},
        }

    def _github_reviewed(self, comment: Json) -> tuple[str, Json]:
        body = {"action": "created", "pull_request": {"number": 8}}
        return "pull_request_review_comment", {**body, "comment": self._comment(comment)}

    def _github_closed(self) -> tuple[str, Json]:
        return "pull_request", {"action": "closed", "pull_request": {"number": 8}}

    def _github_failed(self, commit: str) -> tuple[str, Json]:
        run = {"conclusion": "failure", "head_sha": commit, "name": "tests"}
        return "check_run", {"action": "completed", "check_run": run}

    def _github_told(self, event: str, body: Json) -> tuple[str, Json]:
        return event, body

    def _forgejo_labelled(self, by: str) -> tuple[str, Json]:
        body = {"action": "label_updated", "sender": {"login": by}}
        return "issues", {**body, "issue": self._issue()}

    def _forgejo_said(self, comment: Json, *, on_pull: bool = False) -> tuple[str, Json]:
        event, body = self._github_said(comment, on_pull=on_pull)
        return event, {**body, "is_pull": on_pull}

    def _forgejo_reviewed(self, comment: Json) -> tuple[str, Json]:
        pull = {"number": 8, "updated_at": _TIME.format(self.issue["at"])}
        body = {"action": "reviewed", "sender": {"login": comment["by"]}, "pull_request": pull}
        return "pull_request_rejected", {**body, "review": {"content": comment["text"]}}

    _forgejo_closed = _github_closed

    def _forgejo_failed(self, commit: str) -> tuple[str, Json]:
        return "status", {"sha": commit, "state": "failure", "context": "tests"}

    def _gitlab_labelled(self, by: str) -> tuple[str, Json]:
        return "Issue Hook", {
            "object_kind": "issue",
            "user": {"id": by},
            "object_attributes": {"iid": 7, "action": "update"},
            "labels": [{"title": one} for one in self.issue["labels"]],
        }

    def _gitlab_said(self, comment: Json, *, on_pull: bool = False) -> tuple[str, Json]:
        note = {"id": comment["id"], "note": comment["text"], "action": "create"}
        note["noteable_type"] = "MergeRequest" if on_pull else "Issue"
        note["type"] = "DiffNote" if comment["inline"] else None
        thing = {"merge_request": {"iid": 8}} if on_pull else {"issue": {"iid": 7}}
        body = {"object_kind": "note", "user": {"id": comment["by"]}, "object_attributes": note}
        return "Note Hook", {**body, **thing}

    def _gitlab_reviewed(self, comment: Json) -> tuple[str, Json]:
        return self._gitlab_said(comment, on_pull=True)

    def _gitlab_closed(self) -> tuple[str, Json]:
        attributes = {"iid": 8, "action": "merge"}
        return "Merge Request Hook", {
            "object_kind": "merge_request",
            "object_attributes": attributes,
        }

    def _gitlab_failed(self, commit: str) -> tuple[str, Json]:
        attributes = {"status": "failed", "sha": commit}
        return "Pipeline Hook", {"object_kind": "pipeline", "object_attributes": attributes}

    def _bitbucket_said(self, comment: Json, *, on_pull: bool = False) -> tuple[str, Json]:
        body = {"comment": self._comment(comment), "actor": {"uuid": comment["by"]}}
        if on_pull:
            return "pullrequest:comment_created", {**body, "pullrequest": {"id": 8}}
        return "issue:comment_created", {**body, "issue": {"id": 7}}

    def _bitbucket_reviewed(self, comment: Json) -> tuple[str, Json]:
        return self._bitbucket_said(comment, on_pull=True)

    def _bitbucket_closed(self) -> tuple[str, Json]:
        return "pullrequest:fulfilled", {"pullrequest": {"id": 8}}

    def _bitbucket_failed(self, commit: str) -> tuple[str, Json]:
        link = {"href": f"{self.url}/2.0/repositories/octo/demo/commit/{commit}"}
        status = {"state": "FAILED", "name": "tests", "links": {"commit": link}}
        return "repo:commit_status_updated", {"commit_status": status}

    # How things look

    def _issue(self) -> Json:
        at, issue = _TIME.format(self.issue["at"] % 60), self.issue
        created = self.created
        labels = [{"name": one} for one in issue["labels"]]
        if self.kind == "gitlab":
            about = {"iid": 7, "description": issue["text"], "author": {"username": "eve"}}
            about["created_at"] = created
            return {**about, "title": issue["title"], "labels": issue["labels"], "updated_at": at}
        if self.kind == "bitbucket":
            about = {"id": 7, "content": {"raw": issue["text"]}, "title": issue["title"]}
            about["created_on"] = created
            return {**about, "reporter": {"display_name": "eve"}, "updated_on": at}
        about = {"number": 7, "title": issue["title"], "body": issue["text"], "updated_at": at}
        about["created_at"] = created
        return {**about, "user": {"login": "eve"}, "labels": labels}

    def _comment(self, one: Json) -> Json:
        at = _TIME.format(one["id"] % 60)
        if self.kind == "gitlab":
            shown = {"id": one["id"], "body": one["text"], "system": False, "created_at": at}
            position = {"position": {"new_path": "a.py"}} if one["inline"] else {}
            return {**shown, **position, "author": {"username": one["by"], "id": one["by"]}}
        if self.kind == "bitbucket":
            user = {"display_name": one["by"], "uuid": one["by"]}
            shown = {"id": one["id"], "content": {"raw": one["text"]}, "user": user}
            return {**shown, "created_on": at} | (
                {"inline": {"path": "a.py"}} if one["inline"] else {}
            )
        shown = {"id": one["id"], "body": one["text"], "user": {"login": one["by"]}}
        return {**shown, "created_at": at} | ({"path": "a.py"} if one["inline"] else {})

    def _pull(self, one: Json) -> Json:
        url, sent, commit = f"{self.url}/octo/demo/pull/8", one["sent"], self._commit()
        at, is_of_fork = self.created, one.get("is_of_fork")
        ours = {"full_name": REPOSITORY}
        theirs = {"full_name": "eve/demo"} if is_of_fork else ours
        if self.kind == "gitlab":
            about = {"author": {"username": "eve"}, "sha": commit, "created_at": at}
            ids = {"source_project_id": 666 if is_of_fork else 42, "target_project_id": 42}
            return {**sent, **about, **ids, "iid": 8, "web_url": url, "state": one["state"]}
        if self.kind == "bitbucket":
            about = {"author": {"display_name": "eve"}, "created_on": at, "state": one["state"]}
            source = {**sent["source"], "commit": {"hash": commit[:12]}, "repository": theirs}
            about |= {"source": source, "destination": {**sent["destination"], "repository": ours}}
            return {**sent, **about, "id": 8, "links": {"html": {"href": url}}}
        head = {"ref": sent["head"], "sha": commit, "repo": theirs}
        base = {"ref": sent["base"], "repo": ours}
        about = {"title": sent["title"], "body": sent["body"], "user": {"login": "eve"}}
        refs = {"head": head, "base": base, "created_at": at}
        return {**about, **refs, "number": 8, "html_url": url, "state": one["state"]}

    def _commit(self) -> str:
        ref = self.git.root / f"{REPOSITORY}.git/refs/heads/topic"
        return ref.read_text().strip() if ref.exists() else "0" * 40

    def _list(self, items: list[Any], name: str = "values") -> Any:
        return {name: items} if self.kind == "bitbucket" or name != "values" else items

    # Requests

    def _troubled(self, request: web.Request) -> web.Response | None:
        match self.trouble:
            case "moved" | "renamed" if "demo" in request.rel_url.raw_path:
                return self._redirect(request)
            case "" | "renamed":
                return None
            case "deleted" | "revoked":
                status = 404 if self.trouble == "deleted" else 401
                return web.json_response({"message": self.trouble}, status=status)
            case "down":
                assert request.transport is not None
                request.transport.abort()
                return web.Response()
            case "busy":
                return web.Response(status=429, headers={"Retry-After": "120"})
            case text:
                return web.Response(text=text, content_type="application/json")

    def _redirect(self, request: web.Request) -> web.Response | None:
        """Answer as each host does for a name that a repository had: GitLab finds it by git, and changes nothing."""
        place = str(request.rel_url)
        if self.trouble == "moved":
            return web.Response(status=301, headers={"Location": self.elsewhere + place})
        is_git = place.startswith("/octo/")
        if self.kind == "gitlab" and is_git:
            return None
        if self.kind == "gitlab" and request.method != "GET":
            text = "405 Non GET methods are not allowed for moved projects"
            return web.json_response({"message": text}, status=405)
        if is_git or self.kind in ("forgejo", "bitbucket"):
            place = place.replace("demo", "renamed", 1)
        else:
            place = place.replace(_ROOTS[self.kind], _BY_ID[self.kind], 1)
        status = 301 if request.method == "GET" and self.kind != "forgejo" else 307
        return web.Response(
            status=status, headers={"Location": self.url * (self.kind != "forgejo") + place}
        )

    async def serve_git(self, request: web.Request) -> web.StreamResponse:
        if (troubled := self._troubled(request)) is not None:
            return troubled
        assert self._session is not None
        url = f"http://{self.git.host}{request.raw_path.replace('renamed', 'demo')}"
        headers = {name: value for name, value in request.headers.items() if name != "Host"}
        data = await request.read()
        async with self._session.request(request.method, url, data=data, headers=headers) as answer:
            kept = ("Content-Type", "WWW-Authenticate")
            headers = {name: answer.headers[name] for name in kept if name in answer.headers}
            return web.Response(status=answer.status, body=await answer.read(), headers=headers)

    def lets_in(self, authorization: str) -> bool:
        return authorization == _AUTHORIZATION.get(self.kind, f"Bearer {GOOD}")

    async def handle(self, request: web.Request) -> web.StreamResponse:
        root = _ROOTS[self.kind]
        path = request.rel_url.raw_path
        self.requests.append(f"{request.method} {path}")
        if self.fail:
            return self.fail.pop(0)
        if (troubled := self._troubled(request)) is not None:
            return troubled
        path = path.replace("renamed", "demo").replace(_BY_ID.get(self.kind, root), root)
        if not self.lets_in(request.headers.get("Authorization", "")):
            return web.json_response({"message": "Bad credentials"}, status=401)
        body = await request.json() if request.can_read_body else {}
        place = path.removeprefix(root) if path.startswith(root) else path
        found = self._answer(request, place, body) if self._is_known(request, place, body) else None
        if found is None:
            self.unexpected.append(f"{request.method} {request.rel_url}")
            return web.json_response({"message": "nobody wrote this down"}, status=501)
        if request.method == "POST" and self.lose_answers:
            self.lose_answers -= 1
            assert request.transport is not None
            request.transport.abort()
        if self.hooks and self._news:
            await self._tell(*self._news.pop())
        if isinstance(found, web.Response):
            return found
        return web.json_response(found, status=201 if request.method == "POST" else 200)

    async def _tell(self, what: str, about: Json) -> None:
        assert self._session is not None
        for hook in self.hooks:
            settings = {**hook, **hook.get("config", {})}
            secret = settings["token" if self.kind == "gitlab" else "secret"]
            headers, body = self.delivery(what, secret, **about)
            async with self._session.post(settings["url"], data=body, headers=headers) as answer:
                assert answer.status == 200, await answer.text()

    def _is_known(self, request: web.Request, place: str, body: Json) -> bool:
        """Whether the host's description has all that the query and the body of a call carry."""
        for pattern, names in CARRIES[self.kind].items():
            if re.fullmatch(pattern, f"{request.method} {place}"):
                return {*request.query, *body} <= set(names.split())
        return not request.query and not body

    def _answer(self, request: web.Request, place: str, body: Json) -> Any:
        for method, pattern, answer in _ANSWERS:
            match = re.fullmatch(pattern, place)
            if method == request.method and match:
                return answer(self, request, body, *match.groups())
        return None

    def get_user(self, _request: web.Request, _body: Json) -> Any:
        return {"id": 1, "login": BOT, "username": BOT}

    def get_repository(self, _request: web.Request, _body: Json) -> Any:
        name = "path_with_namespace" if self.kind == "gitlab" else "full_name"
        return {"id": 42, name: "octo/renamed" if self.trouble == "renamed" else REPOSITORY}

    def get_issues(self, request: web.Request, _body: Json) -> Any:
        etag = f'"{self.issue["at"]}-{len(request.query_string)}"'
        if request.headers.get("If-None-Match") == etag:
            return web.Response(status=304)
        found = self._list([self._issue()])
        return web.json_response(found, headers={"ETag": etag})

    def get_issue(self, _request: web.Request, _body: Json) -> Any:
        return self._issue()

    def get_comments(self, request: web.Request, _body: Json) -> Any:
        found = [self._comment(one) for one in self.comments]
        if self.kind != "forgejo":  # that has all of them on each page
            size = int(request.query.get("per_page") or request.query["pagelen"])
            at = size * (int(request.query["page"]) - 1)
            found = found[at : at + size]
        return self._list(found)

    def post_comment(self, _request: web.Request, body: Json) -> Any:
        made = self.say(_text(body), BOT)
        self._news.append(("said", {"comment": made}))
        return self._comment(made)

    def post_pull_comment(self, _request: web.Request, body: Json) -> Any:
        return self._comment(self.say(_text(body), BOT, on_pull=True))

    def post_hook(self, _request: web.Request, body: Json) -> Any:
        self.hooks.append(body)
        return {"id": 1, "active": True}

    def post_label(self, _request: web.Request, body: Json) -> Any:
        return {"id": 1, **body}

    def label_issue(self, _request: web.Request, body: Json) -> Any:
        for name in body.get("labels") or [body["add_labels"]]:
            self.label(name, BOT)
        self._news.append(("labelled", {"by": BOT}))
        return self._issue()

    def patch_comment(self, _request: web.Request, body: Json, comment_id: str) -> Any:
        both = [*self.comments, *self.pull_comments]
        [found] = [one for one in both if str(one["id"]) == comment_id]
        found["text"] = _text(body)
        return self._comment(found)

    def get_labelled(self, _request: web.Request, _body: Json) -> Any:
        pairs = zip(self.issue["labels"], self.labelled_by, strict=True)
        return [
            {"event": "labeled", "type": "label", "body": "1", "action": "add"}
            | {"label": {"name": name}, "actor": {"login": by}, "user": {"login": by, "id": by}}
            for name, by in pairs
        ]

    def get_access(self, request: web.Request, _body: Json, who: str = "") -> Any:
        if self.kind == "bitbucket":
            who = request.query["q"].split('"')[1]
            level = "write" if who in self.writers else "read"
            return self._list([{"permission": level, "user": {"uuid": who}}])
        if self.kind == "gitlab":
            return {"access_level": 30} if who in self.writers else web.Response(status=404)
        return {"permission": "write" if who in self.writers else "read"}

    def get_pulls(self, request: web.Request, _body: Json) -> Any:
        state = request.query.get("state", "all")
        found = [one for one in self.pulls if state in ("all", one["state"])]
        return self._list([self._pull(one) for one in found])

    def post_pull(self, _request: web.Request, body: Json) -> Any:
        self.pulls.append({"sent": body, "state": self._open_as})
        return self._pull(self.pulls[-1])

    def get_pull(self, _request: web.Request, _body: Json) -> Any:
        return self._pull(self.pulls[-1])

    def get_commit(self, _request: web.Request, _body: Json, name: str) -> Any:
        commit = self._commit()
        return {"hash": commit} if commit.startswith(name) else web.Response(status=404)

    def get_pull_comments(self, _request: web.Request, _body: Json) -> Any:
        return self._list([self._comment(one) for one in self.pull_comments if not one["inline"]])

    def get_all_pull_comments(self, _request: web.Request, _body: Json) -> Any:
        return self._list([self._comment(one) for one in self.pull_comments])

    def get_inline(self, _request: web.Request, _body: Json) -> Any:
        return [self._comment(one) for one in self.pull_comments if one["inline"]]

    def get_reviews(self, _request: web.Request, _body: Json) -> Any:
        if self.kind == "github":
            return []
        inline = [one for one in self.pull_comments if one["inline"]]
        return [
            {**self._comment(one), "submitted_at": _TIME.format(one["id"] % 60), "state": "COMMENT"}
            for one in inline
        ]

    def get_checks(self, request: web.Request, _body: Json) -> Any:
        names = self.failed_checks
        if request.path.endswith("check-runs"):
            runs = [{"name": one, "conclusion": "failure"} for one in names]
            return self._list(runs, "check_runs")
        if self.kind == "github":
            return self._list([], "statuses")
        state = {"gitlab": "failed", "bitbucket": "FAILED"}.get(self.kind, "failure")
        return self._list(
            [{"name": one, "context": one, "status": state, "state": state} for one in names]
        )


def _text(body: Json) -> str:
    return str(body["content"]["raw"] if "content" in body else body["body"])


_H: Final = IssueHost
_ANSWERS: Final[list[tuple[str, str, Any]]] = [
    ("GET", r"/(?:api/v\d|2.0)/user", _H.get_user),
    ("POST", r"/hooks", _H.post_hook),
    ("POST", r"/labels", _H.post_label),
    ("POST", r"/issues/7/labels", _H.label_issue),
    ("PUT", r"/issues/7", _H.label_issue),
    ("GET", r"", _H.get_repository),
    ("GET", r"/issues", _H.get_issues),
    ("GET", r"/issues/7", _H.get_issue),
    ("GET", r"/issues/7/(?:comments|notes)", _H.get_comments),
    ("POST", r"/issues/7/(?:comments|notes)", _H.post_comment),
    ("PATCH", r"/issues/comments/(\d+)", _H.patch_comment),
    (
        "PUT",
        r"/(?:issues/7|pullrequests/8|merge_requests/8)/(?:comments|notes)/(\d+)",
        _H.patch_comment,
    ),
    ("POST", r"/(?:issues|pullrequests|merge_requests)/8/(?:comments|notes)", _H.post_pull_comment),
    ("GET", r"/commit/([0-9a-f]+)", _H.get_commit),
    ("GET", r"/issues/7/(?:events|timeline|resource_label_events)", _H.get_labelled),
    ("GET", r"/collaborators/([^/]+)/permission", _H.get_access),
    ("GET", r"/members/all/([^/]+)", _H.get_access),
    ("GET", r"/2.0/workspaces/octo/permissions/repositories/demo", _H.get_access),
    ("GET", r"/(?:pulls|merge_requests|pullrequests)", _H.get_pulls),
    ("POST", r"/(?:pulls|merge_requests|pullrequests)", _H.post_pull),
    ("GET", r"/(?:pulls|merge_requests|pullrequests)/8", _H.get_pull),
    ("GET", r"/issues/8/comments", _H.get_pull_comments),
    ("GET", r"/pulls/8/comments", _H.get_inline),
    ("GET", r"/pulls/8/reviews", _H.get_reviews),
    ("GET", r"/(?:merge_requests/8/notes|pullrequests/8/comments)", _H.get_all_pull_comments),
    ("GET", r"/(?:repository/)?commits?/[0-9a-f]+/(?:check-runs|status|statuses)", _H.get_checks),
]
