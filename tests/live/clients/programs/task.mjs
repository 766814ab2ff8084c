// What the programs share: the task that they get, the report that they give, and waiting.

let text = ""
for await (const part of process.stdin) text += part
export const task = JSON.parse(text)

export function finish(report) {
  process.stdout.write(`${JSON.stringify(report)}\n`, () => process.exit(0))
}

export async function until(look, what) {
  const deadline = Date.now() + task.patience * 1000
  for (;;) {
    const found = await look()
    if (found) return found
    if (Date.now() > deadline) throw new Error(`this did not come true: ${what}`)
    await new Promise((resolve) => setTimeout(resolve, 100))
  }
}
