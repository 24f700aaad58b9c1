// The published TypeScript SDK of Edictum, unchanged, against three nodes of bin/govnode.
//
//   make test-edictum-ts EDICTUM_TS=folder

import assert from 'node:assert/strict'
import { spawn } from 'node:child_process'
import { createHash } from 'node:crypto'
import { mkdtempSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { after, before, test } from 'node:test'

const core = await import(process.env.EDICTUM_TS_CORE)
const server = await import(process.env.EDICTUM_TS_SERVER)

const AGENT = 'key-of-an-agent'
const OPERATOR = 'key-of-an-operator'
const LIMIT = 40
const urls = []
let nodes

before(async () => {
  const hash = (key) => 'sha256:' + createHash('sha256').update(key).digest('hex')
  const keys = join(mkdtempSync(join(tmpdir(), 'keys-')), 'keys.json')
  writeFileSync(keys, JSON.stringify({ keys: [
    { name: 'agent', role: 'agent', hash: hash(AGENT) }, { name: 'operator', role: 'operator', hash: hash(OPERATOR) },
  ] }))
  nodes = spawn(process.env.GOVNODE_BINARY, ['dev', '--nodes', '3', '--listen', '127.0.0.1:0', '--edictum-keys', keys])
  nodes.stderr.resume()
  for await (const line of createInterface({ input: nodes.stdout })) {
    const found = /api=(127\.0\.0\.1:\d+)/.exec(line)
    if (found) urls.push('http://' + found[1])
    if (line === 'ready') break
  }
  nodes.stdout.resume()
  assert.equal(urls.length, 3)
})

after(() => nodes.kill())

const client = (node) => new server.EdictumServerClient({ baseUrl: urls[node], apiKey: AGENT, agentId: 'writer' })

async function operator(node, method, path, body) {
  const res = await fetch(urls[node] + path, {
    method, headers: { Authorization: 'Bearer ' + OPERATOR, 'Content-Type': 'application/json' }, body: body && JSON.stringify(body),
  })
  assert.ok(res.ok, `${path}: ${res.status}`)
  return res.json()
}

async function until(condition) {
  for (let i = 0; i < 400; i++) {
    if (await condition()) return
    await new Promise((done) => setTimeout(done, 50))
  }
  assert.fail('it did not come about')
}

const ruleset = (word) => `apiVersion: edictum/v1
kind: Ruleset
metadata: {name: shells}
defaults: {mode: enforce}
rules:
  - {id: no-word, type: pre, tool: Bash, when: {args.command: {contains: "${word}"}}, then: {action: block, message: "no {args.command}"}}
`

test('sessions are the same on every node', async () => {
  const memory = new core.MemoryBackend()
  const backends = [0, 1, 2].map((n) => new server.ServerBackend(client(n)))
  const key = 's:run-' + Date.now() + ':attempts'
  let at = 0
  const both = async (what, ask) => assert.deepEqual(await ask(backends[at++ % 3]), await ask(memory), what)
  await both('absent', (b) => b.get(key))
  for (let i = 0; i < 5; i++) await both('increment', (b) => b.increment(key, 2))
  await backends[0].set(key + 'x', 'a text: é')
  await memory.set(key + 'x', 'a text: é')
  await both('text', (b) => b.get(key + 'x'))
  await backends[1].delete(key + 'x')
  assert.equal(await backends[2].get(key + 'x'), null)
  await Promise.all(Array.from({ length: 90 }, (_, i) => backends[i % 3].increment(key)))
  assert.equal(await backends[0].get(key), '100')
})

test('a limit holds over two clients, up to the calls in flight', async () => {
  const session = 'run-' + Date.now()
  let ran = 0
  const work = async (node) => {
    const guard = new core.Edictum({
      backend: new server.ServerBackend(client(node)), limits: { maxAttempts: 500, maxToolCalls: LIMIT, maxCallsPerTool: {} },
    })
    for (let i = 0; i < LIMIT; i++) {
      try {
        await guard.run('look', {}, async () => { ran++; return 'ok' }, { sessionId: session })
      } catch (error) {
        if (error instanceof core.EdictumDenied) return
        throw error
      }
    }
  }
  await Promise.all([work(0), work(1)])
  assert.ok(ran >= LIMIT && ran <= LIMIT + 1, `${ran} ran`)
  assert.equal(await new server.ServerBackend(client(2)).get(`s:${session}:execs`), String(ran))
})

test('an approval is decided at another node', async () => {
  for (const yes of [true, false]) {
    const backend = new server.ServerApprovalBackend(client(0), { pollInterval: 50 })
    const asked = await backend.requestApproval('deploy', { to: 'prod' }, 'may it?', { timeout: 60 })
    await operator(1, 'PUT', '/v1/approvals/' + asked.approvalId, { approved: yes, reason: 'so be it' })
    const decided = await backend.waitForDecision(asked.approvalId, 60)
    assert.equal(decided.approved, yes)
  }
})

test('a ruleset is served, and changed while it runs', async () => {
  await operator(0, 'PUT', '/v1/rulesets/shells?env=production', { yaml: ruleset('rm') })
  const served = await server.createServerGuard({ url: urls[1], apiKey: AGENT, agentId: 'writer', bundleName: 'shells' })
  const blocks = async (command) => {
    try {
      await served.guard.run('Bash', { command }, async () => 'ok')
      return false
    } catch (error) {
      if (error instanceof core.EdictumDenied && error.message.includes('no ' + command)) return true
      throw error
    }
  }
  try {
    assert.equal(await blocks('rm x'), true)
    assert.equal(await blocks('mv x y'), false)
    await operator(2, 'PUT', '/v1/rulesets/shells?env=production', { yaml: ruleset('mv') })
    await until(() => blocks('mv x y'))
    assert.equal(await blocks('rm x'), false)
  } finally {
    await served.close()
  }
})
