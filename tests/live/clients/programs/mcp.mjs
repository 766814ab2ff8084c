// What a program does with the TypeScript client of MCP: a whole task, in the middle of which the server is killed.

import { Client } from "@modelcontextprotocol/sdk/client/index.js"
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js"
import { finish, task, until } from "./task.mjs"

const client = new Client({ name: "program", version: "1" })
const headers = { Authorization: `Bearer ${task.key}` }
const url = new URL(`${task.url}/mcp`)
await client.connect(new StreamableHTTPClientTransport(url, { requestInit: { headers } }))

async function use(name, given) {
  const result = await client.callTool({ name, arguments: given })
  if (result.isError) throw new Error(JSON.stringify(result.content))
  return result.structuredContent
}

// While the server is away, calls fail; the same ones are made again.
let failures = 0
const insist = (name, given) =>
  until(async () => {
    try {
      return await use(name, given)
    } catch {
      failures += 1
    }
  }, `the tool ${name} answers`)

const report = { tools: (await client.listTools()).tools.map((tool) => tool.name) }
const order = { message: task.text, conversation_id: task.id }
const ended = await until(async () => {
  await insist("start_conversation", order)
  const seen = await insist("collect_conversation", { conversation_id: task.id, wait_seconds: 5 })
  return seen.is_over && seen
}, "the conversation ends")
report.ended = [ended.execution_status, ended.answer, ended.changes]
report.failures = failures
const uri = `agentsvc://conversations/${task.id}/files/a.txt`
report.file = (await client.readResource({ uri })).contents[0].text
await use("send_message", { conversation_id: task.id, message: task.more })
report.more = await until(async () => {
  const seen = await use("collect_conversation", { conversation_id: task.id, wait_seconds: 5 })
  return seen.is_over && seen.changes.some((one) => one.path === "b.txt") && seen.answer
}, "the message is worked on")
await client.close()
finish(report)
