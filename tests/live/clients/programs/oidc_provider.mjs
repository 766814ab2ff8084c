// A provider of OpenID Connect, until its standard input ends: prints where it is, once a browser can sign in there.

import { createServer } from "node:http"
import { Provider } from "oidc-provider"

const task = JSON.parse(process.argv[2])
const server = createServer()
await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve))
const issuer = `http://127.0.0.1:${server.address().port}`
const provider = new Provider(issuer, {
  clients: [
    {
      client_id: "agentsvc",
      client_secret: task.secret,
      redirect_uris: [`${task.url}/login`],
      backchannel_logout_uri: `${task.url}/api/v1/sign-in/company/logout`,
      backchannel_logout_session_required: true,
    },
  ],
  // Any name and password do on its page.
  findAccount: (_, id) => ({
    accountId: id,
    claims: () => ({ sub: id, preferred_username: id, groups: id === "olga" ? ["ops"] : [] }),
  }),
  claims: { openid: ["sub"], profile: ["preferred_username", "groups"] },
  conformIdTokenClaims: false,
  features: { backchannelLogout: { enabled: true }, devInteractions: { enabled: true } },
  cookies: { keys: ["of a test"] },
  // Without what keeps it from asking addresses of this machine.
  fetch: (url, { dispatcher, ...options }) => fetch(url, options),
  pkce: { required: () => true },
})
provider.on("backchannel.error", (_, error) => console.error(error))
server.on("request", provider.callback())
process.stdin.resume().on("end", () => process.exit())
console.log(issuer)
