// Messages to an agent: the draft, pending messages, and the controls of the run.
import { agentPath, call, get, keep, kept, onKept, post, remove, V1 } from "./api.js";
import { Attachments, attach, withFiles } from "./attachments.js";
import { html, useEffect, useLayoutEffect, useRef, useState } from "./html.js";
import { refusal } from "./me.js";
import { Markdown } from "./markdown.js";
import { FAILED, SENDING } from "./outbox.js";
import { RunWith } from "./runwith.js";
import { askAgain } from "./start.js";
import { Button, Icon, Spinner, useIsThere } from "./ui.js";
import { t } from "./words.js";

const ENDING_MS = 20_000;
const LOOK_MS = 300;

/** Resume the agent; retry on 409, because the interrupted step may still be ending although the agent is paused already. */
async function goOn(agent) {
  const deadline = Date.now() + ENDING_MS;
  for (;;) {
    try {
      return await post(`${agent}/run`);
    } catch (error) {
      if (error.status !== 409) throw error;
      if (Date.now() > deadline) throw new Error(t("The step that the agent was paused in is not over yet. Try again when it is."));
    }
    await new Promise((resolve) => setTimeout(resolve, LOOK_MS));
  }
}

/** Delete a draft, unless another tab has stored a different one since. */
const forget = (name, value) => JSON.stringify(kept(`draft ${name}`)) === JSON.stringify(value) && keep(`draft ${name}`, null);

/** Return a text or a list that this browser stores under a name, and its setter. */
export function useDraft(name, empty = "") {
  const [value, setValue] = useState(() => kept(`draft ${name}`) ?? empty);
  // Not useEffect, which waits for a frame: the page may be closed before it, or the user logged out.
  const last = useRef(value);
  useLayoutEffect(() => {
    if (value.length) keep(`draft ${name}`, value);
    else forget(name, last.current);
    last.current = value;
  }, [name, value]);
  // Clear a draft that another tab has sent, so that it is not sent again here.
  useEffect(() => onKept((one, old) => one === `draft ${name}` && kept(one) === null
    && setValue((now) => (JSON.stringify(now) === old ? empty : now))), [name]);
  return [value, setValue];
}

/** Messages that are not in the conversation yet: being sent by this browser, or queued on the server by any client. */
export function Pending({ outbox, queue, conversation, attempt, setText }) {
  const left = [...queue.messages];
  const shown = outbox.messages.map((message) => {
    const at = message.state === FAILED ? -1 : left.findIndex(({ text }) => text === message.text);
    return { ...message, queued: at < 0 ? null : left.splice(at, 1)[0] };
  });
  const others = left.map((queued) => ({ key: queued.id, text: queued.text, queued, isOther: true }));
  const edit = (text) => setText((old) => (old.trim() ? `${text}\n\n${old}` : text));
  return [...shown, ...others].map(({ key, text, state, error, queued, isOther }) => {
    const cancel = () => attempt(async () => {
      await queue.cancel(queued.id);
      if (!isOther) outbox.drop(key);
    });
    return html`
      <div class="item" key=${key}>
        <div class="bubble user pending ${state ?? ""}"><h3 class="who">${t("You")} <span role="status">${stateOf(state, queued, conversation)}</span></h3><${Markdown} text=${text} />
          ${state === FAILED && html`
            <p class="pre bad-text" role="alert">${error}</p>
            <div class="actions"><${Button} kind="bare" icon="trash" onPress=${() => outbox.drop(key)} label=${t("Discard")} />
              <${Button} kind="bare" icon="pen" onPress=${() => { edit(text); outbox.drop(key); }} label=${t("Edit")} />
              <${Button} icon="refresh" onPress=${() => outbox.retry(key)} label=${t("Try again")} /></div>`}
          ${queued && !queued.is_sent && html`
            <div class="actions"><${Button} kind="bare" icon="cross" needs="run" onPress=${cancel} label=${t("Cancel")} />
              <${Button} kind="bare" icon="pen" needs="run" onPress=${async () => (await cancel()) && edit(text)} label=${t("Edit")} /></div>`}
        </div>
      </div>
    `;
  });
}

function stateOf(state, queued, { queued_messages, sandbox_status }) {
  if (state === FAILED) return t("Not sent");
  if (state === SENDING && !queued) return t("Sending");
  if (queued?.is_sent) return t("Delivered; the agent reads it after this step");
  return queued || queued_messages || sandbox_status !== "RUNNING" ? t("Queued") : t("Delivered");
}

const LOOK_AGAIN_MS = 2000;

/** Return the conversation's pending messages on the server, and a function that cancels one. */
export function useQueue({ id, queued_messages }) {
  const [messages, setMessages] = useState([]);
  const path = `${V1}/conversations/${id}/pending-messages`;
  const asked = useRef(0);
  const load = () => {
    const turn = (asked.current += 1);
    return get(path).then((found) => {
      // Responses may arrive out of order: use only that of the last request.
      if (turn === asked.current) setMessages(found.map((one) => ({ ...one, text: one.content.map((part) => part.text).filter(Boolean).join("\n") })));
    }, () => {});
  };
  useEffect(() => {
    if (!queued_messages) {
      asked.current += 1;
      return setMessages([]);
    }
    load();
    // The stream does not report the delivery of a message to the agent, so poll.
    const timer = setInterval(load, LOOK_AGAIN_MS);
    return () => clearInterval(timer);
  }, [id, queued_messages]);
  const cancel = (message) => remove(`${path}/${message}`).finally(load);
  return { messages, cancel };
}

export function Composer({ conversation, run, timeline, attempt, outbox, text, setText }) {
  const field = useRef(null);
  const chooser = useRef(null);
  const status = conversation.sandbox_status;
  const agent = agentPath(conversation);
  const isRejected = timeline.isRejected && run !== "running" && !outbox.messages.length;
  useEffect(() => {
    if (isRejected) field.current?.focus();
  }, [isRejected]);
  const draftName = `files ${conversation.id}`;
  const [files, setFiles] = useDraft(draftName, []);
  const isThere = useIsThere();
  const [adding, setAdding] = useState(0);
  const [isOver, setOver] = useState(false);
  const send = () => {
    const said = withFiles(text.trim(), files);
    // Wait for the uploads: these files belong to the message.
    if (!said || adding) return;
    // Delete the draft before the outbox stores the images: the browser may not have room for both copies.
    forget(draftName, files);
    outbox.send(said, files.map(({ image }) => image).filter(Boolean));
    setText("");
    setFiles([]);
  };
  const add = (chosen) => {
    // Copy the list: the browser empties it when the input is cleared.
    const given = [...chosen];
    return given.length > 0 && attempt(async () => {
      setAdding((count) => count + 1);
      try {
        const added = await attach(conversation, given);
        if (isThere.current) setFiles((old) => [...old, ...added]);
        else keep(`draft ${draftName}`, [...(kept(`draft ${draftName}`) ?? []), ...added]);
      } finally {
        setAdding((count) => count - 1);
      }
    });
  };
  const onPaste = (event) => {
    if (!event.clipboardData.files.length) return;
    event.preventDefault();
    add(event.clipboardData.files);
  };
  // The text field itself handles dropped text.
  const hasFiles = (event) => event.dataTransfer.types.includes("Files");
  const onDrop = (event) => {
    if (!hasFiles(event)) return;
    event.preventDefault();
    setOver(false);
    add(event.dataTransfer.files);
  };
  const onOver = (event) => {
    if (!hasFiles(event)) return;
    event.preventDefault();
    setOver(true);
  };
  const onKey = (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    send();
  };
  if (refusal("run")) return null;
  if (["MISSING", "ERROR"].includes(status)) return html`<${Gone} conversation=${conversation} timeline=${timeline} outbox=${outbox} />`;
  const act = (name) => () => attempt(() => post(`${agent}/${name}`));
  const wake = () => attempt(() => call("POST", `${V1}/sandboxes/${conversation.sandbox_id}/resume`));
  const resume = () => attempt(() => goOn(agent));
  return html`
    ${status === "PAUSED" && html`
      <p class="banner"><${Icon} name="pause" /><span>${t("The sandbox is paused. A message wakes it, too.")}</span>
      <${Button} kind="primary" icon="play" onPress=${wake} label=${t("Resume the sandbox")} /></p>`}
    ${status === "STARTING" && html`<p class="banner"><span class="spinner">${t("The sandbox starts")}</span></p>`}
    ${isRejected && html`
      <p class="banner" role="status"><${Icon} name="cross" /><span>${t("You rejected this step, and the agent waits. Tell it what to do instead, or let it find another way.")}</span>
      <${Button} icon="play" onPress=${resume} label=${t("Continue without it")} /></p>`}
    <form class="composer ${isOver ? "over" : ""}" onSubmit=${(event) => event.preventDefault()} onDragOver=${onOver} onDragLeave=${() => setOver(false)} onDrop=${onDrop}>
      <${Attachments} files=${files} onRemove=${(file) => setFiles((old) => old.filter((one) => one !== file))} />
      ${adding > 0 && html`<${Spinner} label=${t("The files are put into the workspace")} />`}
      <textarea rows="2" ref=${field} data-key="message" onPaste=${onPaste} aria-label=${t("Message to the agent")} placeholder=${isRejected ? t("What should the agent do instead?") : t("Message to the agent")} value=${text}
        onInput=${(event) => setText(event.target.value)} onKeyDown=${onKey}></textarea>
      <div class="composer-actions">
        ${run === "running" && status === "RUNNING" && html`
          <${Button} icon="pause" onPress=${act("pause")} label=${t("Pause")} title=${t("Pause after the present step")} />
          <${Button} icon="stop" onPress=${act("interrupt")} label=${t("Interrupt")} title=${t("Stop at once")} />`}
        ${["paused", "idle"].includes(run) && !isRejected && status === "RUNNING" && html`<${Button} icon="play" onPress=${resume} label=${t("Resume")} />`}
        <span class="grow"></span>
        <${RunWith} conversation=${conversation} run=${run} attempt=${attempt} />
        <input type="file" multiple hidden ref=${chooser} onChange=${(event) => { add(event.target.files); event.target.value = ""; }} />
        <${Button} kind="bare" icon="clip" isIcon label=${t("Attach files")} onPress=${() => chooser.current.click()} />
        <${Button} kind="primary" icon="send" onPress=${send} label=${t("Send")} aria-disabled=${adding ? "true" : null} />
      </div>
    </form>
  `;
}

/** Replaces the composer when the sandbox is gone or failed: the task can be started again. */
function Gone({ conversation, timeline, outbox }) {
  const [task, setTask] = useState();
  useEffect(() => {
    get(`${V1}/app-conversations/start-tasks/search`, { conversation_id__eq: conversation.id, limit: 1 })
      .then(({ items }) => setTask(items[0] ?? null), () => setTask(null));
  }, [conversation.id]);
  const first = timeline.items.find(({ type }) => type === "user")?.text;
  const asked = first ?? task?.request.initial_message?.content?.find((part) => part.text)?.text ?? outbox.messages[0]?.text ?? "";
  const again = () => askAgain(asked, { ...conversation, agent_type: task?.request.agent_type, sandbox_id: task?.request.sandbox_id });
  return html`
    ${!first && asked && html`<blockquote class="asked">${asked}</blockquote>`}
    <p class="banner" role="alert"><${Icon} name="box" /><span>${conversation.sandbox_status === "ERROR" ? t("The sandbox has failed.") : t("The sandbox is gone.")}
      ${timeline.items.length ? t(" What happened stays here to be read.") : t(" It ended before the agent began.")}</span>
      <a class="button" href="#/sandboxes">${t("Look at the sandboxes")}</a>
      ${task !== undefined && html`<${Button} kind="primary" icon="refresh" onPress=${again} label=${t("Start again")} />`}</p>
  `;
}
