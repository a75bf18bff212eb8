// Cloudflare's local R2 and D1 in one workerd process, on one port of the loopback:
//   /cdn-cgi/local/r2/s3                      the S3 API (path style, any region)
//   /client/v4/accounts/.../d1/database/...   D1's REST paths, served by d1-worker.mjs over the D1 engine
//
// usage: node engine.mjs MODULES PORT DATA OPTIONS
// MODULES: where node_modules lies; DATA: the folder for objects and databases; OPTIONS: JSON with
// accessKey, secretKey, buckets [name], account, token, databases {uuid: name}.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { fileURLToPath } from "node:url";
import path from "node:path";

const [modules, port, data, json] = process.argv.slice(2);
const options = JSON.parse(json);
const { Miniflare, Log, LogLevel } = createRequire(path.join(modules, "package.json"))("miniflare");
const worker = fileURLToPath(new URL("d1-worker.mjs", import.meta.url));

// A binding of this form is the database's own service, without the conversions of the Workers API.
const binding = (n) => `__D1_BETA__${n}`;
const ids = Object.keys(options.databases);
const databases = Object.fromEntries(ids.map((id, n) => [id, { binding: binding(n), name: options.databases[id] }]));
const s3Credentials = { accessKeyId: options.accessKey, secretAccessKey: options.secretKey };

const miniflare = new Miniflare({
  host: "127.0.0.1",
  port: Number(port),
  log: new Log(LogLevel.WARN),
  compatibilityDate: "2026-04-01",
  modules: [{ type: "ESModule", path: "d1-worker.mjs", contents: readFileSync(worker, "utf8") }],
  bindings: { CONFIG: { token: options.token, account: options.account, databases } },
  d1Databases: Object.fromEntries(ids.map((id, n) => [binding(n), id])),
  d1Persist: path.join(data, "d1"),
  r2Buckets: Object.fromEntries(options.buckets.map((id, n) => [`BUCKET_${n}`, { id, s3Credentials }])),
  r2Persist: path.join(data, "r2"),
  telemetry: { enabled: false },
  cf: false, // else Miniflare asks a host outside for a sample of request.cf at each start
});

let stopping = false;
async function stop() {
  if (stopping) return;
  stopping = true;
  await miniflare.dispose().catch(() => {});
  process.exit(0);
}
// Miniflare's own handlers would end this process before workerd is told to stop.
for (const signal of ["SIGTERM", "SIGINT"]) {
  process.removeAllListeners(signal);
  process.on(signal, stop);
}

await miniflare.ready;
console.log("ready");
