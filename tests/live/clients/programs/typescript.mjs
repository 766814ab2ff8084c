// What a program does with the TypeScript client, from the login to the end of a conversation.

import { WebSocket } from "ws"
import { finish, task, until } from "./task.mjs"

// The client is made for browsers: in a module of Node it finds no other WebSocket than this one.
globalThis.window = { WebSocket }
globalThis.File ??= (await import("node:buffer")).File
const { CloudClient, SharedClient, pollForToken, startDeviceFlow } = await import(
  "@openhands/typescript-client/clients"
)
const { Agent, Conversation, Workspace } = await import("@openhands/typescript-client")
const report = {}

// A key of its own, by the login for programs without a browser
const login = await startDeviceFlow(task.url)
await fetch(`${task.url}/oauth/device/verify-authenticated`, {
  method: "POST",
  headers: { Authorization: `Bearer ${task.key}` },
  body: new URLSearchParams({ user_code: login.user_code }),
})
const token = await pollForToken(task.url, login.device_code, { interval: login.interval })
const cloud = new CloudClient({ host: task.url, apiKey: token.access_token })
report.auth = (await cloud.getCurrentApiKey()).auth_type

// Settings, profiles and secrets
await cloud.saveSettings({
  conversation_settings_diff: { max_iterations: 77 },
  app_preferences: { language: "de" },
})
const settings = await cloud.getSettingsWithDerivedFields()
report.settings = [
  settings.conversation_settings.max_iterations,
  settings.language,
  settings.agent_settings.llm.model,
  settings.llm_api_key_set,
]
report.sections = (await cloud.getSettingsSchema()).sections.length
await cloud.saveProfile("first", { llm: { model: "openai/scripted", ...task.llm } })
await cloud.renameProfile("first", "second")
report.profiles = (await cloud.listProfiles()).profiles.map((profile) => profile.name)
report.profile = (await cloud.getProfile("second")).config.model
await cloud.createSecret("A_SECRET", "hidden", "of a test")
await cloud.updateSecret("A_SECRET", "B_SECRET", "of a test")
report.secrets = (await cloud.listSecrets()).map((secret) => secret.name)
report.models = (await cloud.searchModels({ limit: 3 })).items.length
report.providers = (await cloud.searchProviders({ limit: 3 })).items.length

// A conversation
const started = await cloud.createConversation({
  initial_message: { role: "user", content: [{ type: "text", text: task.text }] },
})
const ended = await until(async () => {
  const start = await cloud.getConversationStartTask(started.id)
  return ["READY", "ERROR"].includes(start.status) && start
}, "the conversation is started")
report.start = [ended.status, ended.detail]
const id = ended.app_conversation_id
const get = async () => (await cloud.getConversations([id]))[0]
const executes = async (status) => (await get()).execution_status === status
await until(() => executes("finished"), "the first run has ended")
const seen = await get()
report.id = id
report.sandbox_id = seen.sandbox_id
report.listed = (await cloud.searchConversations()).items.some((one) => one.id === id)

// What a published page shows of it to whoever has a link
const made = await fetch(`${task.url}/api/v1/shares`, {
  method: "POST",
  headers: { Authorization: `Bearer ${task.key}`, "Content-Type": "application/json" },
  body: JSON.stringify({ conversation_id: id }),
})
const link = (await made.json()).id
const reader = new SharedClient({ host: task.url })
report.shared = [
  (await reader.getSharedConversation(link)).id === link,
  [...new Set((await reader.searchSharedEvents({ conversationId: link, limit: 100 })).items.map((one) => one.kind))],
]
reader.close()

// Its stream
const events = []
const workspace = new Workspace({
  host: seen.conversation_url.split("/api/conversations/")[0],
  workingDir: "own",
  apiKey: seen.session_api_key,
})
const llm = { model: "openai/scripted", ...task.llm }
const conversation = new Conversation(new Agent({ llm }), workspace, {
  conversationId: id,
  callback: (event) => events.push(event),
})
await conversation.start()
await conversation.startWebSocketClient()
await until(() => events.length > 0, "the stream has begun")
await conversation.sendMessage(task.more)
await conversation.run()
const finishes = () => events.filter((event) => event.action?.kind === "FinishAction").length
await until(finishes, "the end of the run is streamed")
report.kinds = [...new Set(events.map((event) => event.kind))]
report.streamed = events
  .filter((event) => event.observation?.kind === "TerminalObservation")
  .map((event) => event.observation.content.map((item) => item.text).join("").split("\n")[0])
report.answer = await conversation.getAgentFinalResponse()

// Files and git
const directory = (await conversation.state.getWorkspace()).working_dir
await workspace.uploadText("text\n", `${directory}/b.txt`)
report.text = await workspace.downloadAsText(`${directory}/b.txt`)
const bytes = new Uint8Array(1000).map((_, index) => index)
await workspace.fileUpload(new Blob([bytes]), `${directory}/b.bin`)
const sums = await workspace.executeCommand("cksum b.bin | cut -d' ' -f2", directory)
report.size = sums.stdout.trim()
report.file = JSON.parse(await cloud.readConversationFile(id, `${directory}/b.txt`))
report.changes = (await workspace.gitChanges(directory)).map((one) => [one.status, one.path])
report.diff = await workspace.gitDiff(`${directory}/a.txt`)
const archive = new Uint8Array(await (await cloud.downloadConversation(id)).arrayBuffer())
report.archive = String.fromCharCode(...archive.slice(0, 2))

// Pause and resume
await cloud.switchConversationProfile(id, "second")
const status = async () => (await cloud.getSandboxes([seen.sandbox_id]))[0]?.status
await cloud.pauseSandbox(seen.sandbox_id)
await until(async () => (await status()) === "PAUSED", "the sandbox is paused")
report.paused = [(await get()).sandbox_status, (await get()).execution_status]
await cloud.resumeSandbox(seen.sandbox_id)
await until(async () => (await status()) === "RUNNING", "the sandbox runs again")
await conversation.sendMessage(task.last)
await conversation.run()
await until(() => finishes() === 2, "the run after the pause has ended")

// One of the program's own, in the same sandbox
const own = new Conversation(new Agent({ llm, tools: [{ name: "terminal" }] }), workspace)
await own.start({ initialMessage: task.more })
await until(async () => (await own.state.getAgentStatus()) === "finished", "its own has ended")
report.own = await own.getAgentFinalResponse()

// The end
await conversation.stopWebSocketClient()
await cloud.updateConversationPublicFlag(id, false)
await cloud.deleteConversation(id)
report.gone = await get()
await cloud.deleteConversation(own.id)
await cloud.deleteProfile("second")
await cloud.deleteSecret("B_SECRET")
report.left = [(await cloud.listProfiles()).profiles.length, (await cloud.listSecrets()).length]
finish(report)
