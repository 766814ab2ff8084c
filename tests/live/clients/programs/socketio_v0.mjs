// What a program does at the socket of the older generation, with socket.io's own client.

import { io } from "socket.io-client"
import { finish, task, until } from "./task.mjs"

const name = task.conversation_id
const report = {}

function open(query, options = {}) {
  const fields = { latest_event_id: -1, session_api_key: task.key, ...query }
  const socket = io(task.url, { query: fields, reconnection: false, forceNew: true, ...options })
  const frames = []
  socket.on("oh_event", (frame) => frames.push(frame))
  return { socket, frames }
}

function refusal(query) {
  const { socket } = open(query)
  return new Promise((resolve) => {
    socket.on("connect_error", (error) => resolve(error.message))
    socket.on("connect", () => resolve(null))
  }).finally(() => socket.disconnect())
}

const events = (frames) => frames.filter((one) => "id" in one && !("status_update" in one))
const states = (frames) =>
  frames
    .filter((one) => one.observation === "agent_state_changed")
    .map((one) => one.extras.agent_state)
const count = (frames, state) => states(frames).filter((one) => one === state).length
const outputs = (frames) =>
  frames.filter((one) => one.observation === "run").map((one) => one.content.trim())
const act = (socket, action, args) => socket.emit("oh_user_action", { action, args })

report.wrong_key = await refusal({ conversation_id: name, session_api_key: "wrong" })
report.unknown = await refusal({ conversation_id: "0".repeat(32) })

const { socket, frames } = open({ conversation_id: name })
const state = (wanted, times = 1) =>
  until(() => count(frames, wanted) >= times, `the agent is ${wanted} ${times} times`)
await state("finished")
report.replayed = outputs(frames)
report.before = events(frames).length

act(socket, "message", { content: task.text, image_urls: [] })
await state("finished", 2)
report.live = outputs(frames).slice(report.replayed.length)
report.echoed = events(frames)
  .slice(report.before)
  .filter((one) => one.action === "message" && one.source === "user")
  .map((one) => one.args.content)

const running = count(frames, "running")
act(socket, "message", { content: task.slow, image_urls: [] })
await state("running", running + 1)
act(socket, "change_agent_state", { agent_state: "paused" })
await state("paused")
act(socket, "change_agent_state", { agent_state: "running" })
await state("finished", 3)
report.resumed = outputs(frames).slice(-2)
const ids = events(frames).map((one) => one.id)
report.ids = ids
socket.disconnect()

const again = open(
  { conversation_id: name, latest_event_id: ids.at(-3) },
  { transports: ["websocket"] },
)
await until(() => count(again.frames, "finished") >= 1, "what was missed is replayed")
report.missed = events(again.frames).map((one) => one.id)
again.socket.disconnect()
finish(report)
