// What an editor does with the TypeScript client of ACP, over the command of this machine and over a WebSocket.

import { spawn } from "node:child_process"
import { Readable, Writable } from "node:stream"
import * as acp from "@agentclientprotocol/sdk"
import { createWebSocketStream } from "@agentclientprotocol/sdk/experimental/ws-client"
import { WebSocket } from "ws"
import { finish, task } from "./task.mjs"

const report = {}
const updates = []
let asked = 0
const editor = acp
  .client()
  .onNotification(acp.methods.client.session.update, ({ params }) => void updates.push(params.update))
  .onRequest(acp.methods.client.session.requestPermission, ({ params }) => {
    asked += 1
    const [allowed] = params.options.filter((one) => one.kind === "allow_once")
    return { outcome: { outcome: "selected", optionId: allowed.optionId } }
  })
const texts = (kind) =>
  updates.filter((one) => one.sessionUpdate === kind).map((one) => one.content.text)

async function open(agent) {
  const hello = await agent.request(acp.methods.agent.initialize, {
    protocolVersion: acp.PROTOCOL_VERSION,
    clientCapabilities: {},
  })
  return [hello.protocolVersion === acp.PROTOCOL_VERSION, hello.agentCapabilities.loadSession]
}

// Here, by a command
const child = spawn(task.command[0], task.command.slice(1), {
  env: { ...process.env, ...task.environment },
  stdio: ["pipe", "pipe", "inherit"],
})
const here = acp.ndJsonStream(Writable.toWeb(child.stdin), Readable.toWeb(child.stdout))
let sessionId = ""
await editor.connectWith(here, async (agent) => {
  report.command = await open(agent)
  sessionId = (await agent.request(acp.methods.agent.session.new, { cwd: "/", mcpServers: [] }))
    .sessionId
  const prompt = [{ type: "text", text: task.text }]
  const ended = await agent.request(acp.methods.agent.session.prompt, { sessionId, prompt })
  report.ended = ended.stopReason
})
child.kill()
report.asked = asked
report.said = texts("agent_message_chunk").join("")

// From elsewhere, with the same session
updates.length = 0
const headers = { Authorization: `Bearer ${task.key}` }
const far = createWebSocketStream(`${task.url.replace("http", "ws")}/acp`, { WebSocket, headers })
await editor.connectWith(far, async (agent) => {
  report.socket = await open(agent)
  const params = { sessionId, cwd: "/", mcpServers: [] }
  await agent.request(acp.methods.agent.session.load, params)
})
report.loaded = [texts("user_message_chunk"), texts("agent_message_chunk").join("")]
finish(report)
