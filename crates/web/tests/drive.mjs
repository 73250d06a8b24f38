// Drives the page in a headless Chromium, by chromedriver's own protocol: node drive.mjs PAGE FOLDER. FOLDER has the images; downloads go to FOLDER/saved.
import { spawn } from "node:child_process";
import { readFileSync, existsSync, mkdirSync, writeFileSync } from "node:fs";
import assert from "node:assert/strict";
const [page, folder] = process.argv.slice(2);
const saved = `${folder}/saved`;
mkdirSync(saved, { recursive: true });
const driver = spawn("chromedriver", ["--port=0"], { stdio: ["ignore", "pipe", "inherit"] });
const port = await new Promise((resolve) => { let text = ""; driver.stdout.on("data", (d) => { text += d; const m = /on port (\d+)\./.exec(text); if (m) resolve(m[1]); }); });
let session = "";
const call = async (method, path, body) => {
  const r = await fetch(`http://127.0.0.1:${port}/session${session}${path}`, { method, body: body && JSON.stringify(body) });
  const { value } = await r.json();
  if (value?.error) throw new Error(`${path}: ${value.message}`);
  return value;
};
const run = (script, ...args) => call("POST", "/execute/sync", { script, args });
const until = async (what, script, ...args) => {
  for (let n = 0; n < 300; n++) { const v = await run(script, ...args); if (v) return v; await new Promise((r) => setTimeout(r, 100)); }
  throw new Error(`${what}: not seen. ${await run("return document.body.innerText")}`);
};
const text = (id) => run("return document.getElementById(arguments[0]).textContent", id);
const choose = async (name) => {
  const e = Object.values(await call("POST", "/element", { using: "css selector", value: "#file" }))[0];
  await call("POST", `/element/${e}/value`, { text: `${folder}/${name}` });
};
const press = (label) => until(label, "const b=[...document.querySelectorAll('button')].find(b=>b.textContent.startsWith(arguments[0])&&!b.disabled&&b.offsetParent); b?.click(); return !!b", label);
const see = (id, part) => until(`${part} in ${id}`, "return document.getElementById(arguments[0]).textContent.includes(arguments[1])", id, part);
const shot = async (name) => writeFileSync(`${folder}/${name}.png`, Buffer.from(await call("GET", "/screenshot"), "base64"));
try {
  const made = await call("POST", "", { capabilities: { alwaysMatch: { browserName: "chrome", "goog:loggingPrefs": { performance: "ALL", browser: "ALL" }, "goog:chromeOptions": {
    args: ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--window-size=1100,900"], prefs: { "download.default_directory": saved, "download.prompt_for_download": false } } } } });
  session = `/${made.sessionId}`;
  await call("POST", "/url", { url: `file://${page}` });

  await choose("large.ext4");
  await see("crumbs", "4 entries");
  await shot("files");
  const read = Number(await run("return document.getElementById('read').dataset.bytes"));
  assert(read > 0 && read < 16 << 20, `${read} bytes read to list a 2 GiB image`);
  await press("data.bin");
  await until("the download", "return document.getElementById('status').textContent.startsWith('data.bin')");
  for (let n = 0; n < 100 && !existsSync(`${saved}/data.bin`); n++) await new Promise((r) => setTimeout(r, 100));
  assert.deepEqual(readFileSync(`${saved}/data.bin`), readFileSync(`${folder}/data.bin`));
  await see("tall", "caf\ufffd");
  await press("many");
  await see("crumbs", "10000 entries");
  await run("document.getElementById('rows').scrollTop = 1e9");
  await see("tall", "file-9999");
  assert(await run("return document.querySelectorAll('.row').length") < 100);
  await press("Check");
  await see("check", "No damage was found.");
  await press("Map");
  await until("the map", "const i=document.querySelector('#map img'); return i && i.complete && i.naturalWidth > 0");
  await shot("map");

  await choose("small.f2fs");
  await see("about", "f2fs");
  await see("crumbs", "1 entries");
  await choose("disk.qcow2");
  await press("Partition 1");
  await see("tall", "inside");
  await shot("partition");

  await choose("damaged.ext4");
  await see("about", "ext4");
  await press("Check");
  await see("check", "issues");
  assert(await run("return document.querySelectorAll('#check li').length") > 0);
  await shot("damaged");

  // Nothing leaves: the policy refuses a connection, and the log of the network has none.
  assert.equal(await call("POST", "/execute/async", { script: "const done=arguments[0]; fetch('http://127.0.0.1:9/').then(()=>done('sent'), ()=>done('refused'))", args: [] }), "refused");
  const log = await call("POST", "/se/log", { type: "performance" });
  const urls = log.map((l) => JSON.parse(l.message).message).filter((m) => m.method === "Network.requestWillBeSent").map((m) => m.params.request.url);
  const leaving = urls.filter((u) => !/^(file|blob|data):/.test(u) && u !== "http://127.0.0.1:9/");
  assert.deepEqual(leaving, []);

  if (existsSync(`${folder}/trap.html`)) {
    await call("POST", "/url", { url: `file://${folder}/trap.html` });
    await choose("small.f2fs");
    await see("error", "stopped the reader");
  }
  console.log(`read ${read}`);
} finally {
  if (session) await call("DELETE", "").catch(() => {});
  driver.kill();
}
