// Drives the page in a headless Chromium: node drive.mjs FOLDER. FOLDER has the images, page.html, and trap.html and trap.wasm, whose module
// traps at once; downloads go to FOLDER/saved.
import { execFileSync } from "node:child_process";
import { createServer } from "node:http";
import { readFileSync, readdirSync, existsSync, mkdirSync } from "node:fs";
import { gunzipSync } from "node:zlib";
import { createHash } from "node:crypto";
import assert from "node:assert/strict";
import { browser } from "./driver.mjs";
const [folder] = process.argv.slice(2);
const saved = `${folder}/saved`;
mkdirSync(saved, { recursive: true });

// Chooses an image and waits until the page says what it is; what the page says of another image does not count.
const choose = async (name) => {
  const e = Object.values(await call("POST", "/element", { using: "css selector", value: "#file" }))[0];
  await call("POST", `/element/${e}/value`, { text: `${folder}/${name}` });
};
const opened = async (name) => { await choose(name); await until(`${name} opened`, "return document.getElementById('status').textContent.startsWith(arguments[0])", `${name}: `); };
const download = async (name) => {
  for (let n = 0; n < 100 && !existsSync(`${saved}/${name}`); n++) await new Promise((r) => setTimeout(r, 100));
  if (!existsSync(`${saved}/${name}`)) throw new Error(`${name}: not downloaded, but ${readdirSync(saved)}. ${await run("return document.body.innerText")}`);
  return readFileSync(`${saved}/${name}`);
};
const press = (label) => click(label, "return [...document.querySelectorAll('button')].find(b=>b.textContent.startsWith(arguments[0])&&!b.disabled&&b.offsetParent)", label);
const see = (id, part) => until(`${part} in ${id}`, "const e=document.getElementById(arguments[0]); return e.offsetParent && e.textContent.includes(arguments[1])", id, part);
// The most pages of 64 KiB that the memory of a module may have: section 5 of a module says it.
const memoryMax = (wasm) => {
  let at = 8;
  const number = () => { let n = 0, shift = 0, byte; do { byte = wasm[at++]; n += (byte & 127) * 2 ** shift; shift += 7; } while (byte & 128); return n; };
  while (at < wasm.length) {
    const section = wasm[at++], length = number(), next = at + length;
    if (section === 5) { number(); const limited = wasm[at++] & 1; number(); return limited ? number() : Infinity; }
    at = next;
  }
  return Infinity;
};
const packed = /id="module">([^<]*)</.exec(readFileSync(`${folder}/page.html`, "latin1"))[1];
assert.equal(memoryMax(gunzipSync(Buffer.from(packed, "base64"))), 16384);

// A server outside the page, which no request may reach.
let reached = 0;
const outside = createServer((_, answer) => { reached++; answer.writeHead(200, { "Access-Control-Allow-Origin": "*" }).end("reached"); });

const { call, run, until, evaluated, click, shot, end } = await browser(folder, saved);
try {
  // Not before the browser is there: while it listens, node does not end.
  await new Promise((resolve) => outside.listen(0, "127.0.0.1", resolve));
  const address = `http://127.0.0.1:${outside.address().port}/`;

  // The driver reaches the page's worker, to break the module in it, and counts the parts of a stream that were sent and not yet written.
  await call("POST", "/goog/cdp/execute", { cmd: "Page.addScriptToEvaluateOnNewDocument", params: { source: `delete window.showSaveFilePicker; window.workers = []; window.parts = { sent: 0, written: 0, pendingMax: 0 };
    window.Worker = class extends Worker { constructor(...a) {
      super(...a);
      window.workers.push(this);
      this.addEventListener("message", ({ data }) => {
        if (data.event?.event !== "part") return;
        window.parts.sent++;
        window.parts.pendingMax = Math.max(window.parts.pendingMax, window.parts.sent - window.parts.written);
      });
    } };` } });
  await call("POST", "/url", { url: `file://${folder}/page.html` });

  await opened("large.ext4");
  await see("crumbs", "5 entries");
  await shot("files");
  const read = Number(await run("return document.getElementById('read').dataset.bytes"));
  assert(read > 0 && read < 16 << 20, `${read} bytes read to list a 2 GiB image`);
  await press("data.bin");
  assert.deepEqual(await download("data.bin"), readFileSync(`${folder}/data.bin`));
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

  // Pressed while the volume is opening: the view stays.
  await opened("small.f2fs");
  await press("Check");
  await see("check", "No damage was found.");
  await see("about", "f2fs");
  assert.equal(await run("return document.getElementById('files').hidden"), true);
  await press("Files");
  await see("crumbs", "2 entries");
  await press("hello");
  assert.equal(String(await download("hello")), "f2fs");
  await press("folder");
  await see("crumbs", "1 entry");
  await press("Download this folder");
  await download("folder.tar");
  assert.deepEqual(execFileSync("tar", ["-xOf", `${saved}/folder.tar`, "--wildcards", "*large.bin"], { maxBuffer: 1 << 26 }), readFileSync(`${folder}/large.bin`));

  // What may be large is written while it is read. The dialog is the browser's: here it gives a file that remembers.
  await run(`window.picked = []; window.showSaveFilePicker = async ({ suggestedName }) => {
    if (window.refusing) throw new DOMException("closed", "AbortError");
    const file = { name: suggestedName, parts: [], state: "open", left: true };
    window.picked.push(file);
    return { name: suggestedName,
      createWritable: async () => {
        if (window.forbidden) throw new Error("not permitted");
        return {
          write: async (part) => {
            // A first write so slow that a reader that does not wait sends a third part meanwhile.
            const wait = window.slow && window.parts.written === 0 ? 3000 : 5;
            for (const end = Date.now() + wait; Date.now() < end && window.parts.sent - window.parts.written < 3;) await new Promise((r) => setTimeout(r, 5));
            if (window.full) throw new Error("the disk is full");
            file.parts.push(part);
            window.parts.written++;
          },
          close: async () => { if (window.fullAtLast) throw new Error("the disk is full at last"); file.state = "closed"; },
          abort: async () => { file.state = "aborted"; } };
      },
      remove: window.irremovable ? undefined : async () => { file.left = false; } };
  };`);
  const picked = async (state) => {
    await until(`a file that is ${state}`, "return window.picked.at(-1)?.state === arguments[0]", state);
    const told = await evaluated("const f = window.picked.at(-1); const b = new Blob(f.parts); const h = await crypto.subtle.digest('SHA-256', await b.arrayBuffer()); return { name: f.name, parts: f.parts.length, size: b.size, hash: [...new Uint8Array(h)].map((n) => n.toString(16).padStart(2, '0')).join('') };");
    return told;
  };
  await opened("large.ext4");
  await see("crumbs", "5 entries");
  await press("heavy");
  await see("crumbs", "1 entry");
  const heavy = readFileSync(`${folder}/heavy.bin`);
  await press("heavy.bin");
  const whole = await picked("closed");
  assert.deepEqual([whole.name, whole.size, whole.hash], ["heavy.bin", heavy.length, createHash("sha256").update(heavy).digest("hex")]);
  // The reader waits for a slow disk: no more than two parts are in the page.
  const stream = async () => { await run("window.parts = { sent: 0, written: 0, pendingMax: 0 }"); await press("Download this folder"); };
  await run("window.slow = true");
  await stream();
  await until("a second file", "return window.picked.length === 2");
  const streamed = await picked("closed");
  assert(streamed.name === "heavy.tar" && streamed.size > heavy.length && streamed.size % 512 === 0, JSON.stringify(streamed));
  assert(streamed.parts > 8, `${streamed.parts} parts`);
  assert((await run("return window.parts.pendingMax")) <= 2, "parts in the page");
  const extracted = await evaluated(`
    const tar = await new Blob(window.picked.at(-1).parts).arrayBuffer();
    for (let at = 0; at < tar.byteLength;) {
      const bytes = parseInt(new TextDecoder().decode(tar.slice(at + 124, at + 136)), 8);
      if (bytes === args[0]) {
        const hash = await crypto.subtle.digest("SHA-256", tar.slice(at + 512, at + 512 + bytes));
        return [...new Uint8Array(hash)].map((n) => n.toString(16).padStart(2, "0")).join("");
      }
      at += 512 + Math.ceil(bytes / 512) * 512;
    }`, heavy.length);
  assert.equal(extracted, whole.hash);
  // A disk that is full ends the stream at once, and no file is left. The page works after it.
  await run("window.slow = false; window.full = true");
  await stream();
  await picked("aborted");
  await see("error", "“heavy.tar” cannot be written: the disk is full");
  assert.equal(await run("return window.picked.at(-1).left"), false);
  assert((await run("return window.parts.sent")) <= 2, "the stream went on");
  await until("the end of it", "return document.getElementById('cancel').hidden");
  await press("heavy.bin");
  await picked("aborted");
  await see("error", "“heavy.bin” cannot be written: the disk is full");
  assert.equal(await run("return window.picked.at(-1).left"), false);
  // So does one that is full when the file is closed; a file that cannot be removed is named; one that cannot be written at all is removed.
  await run("window.full = false; window.fullAtLast = window.irremovable = true");
  await stream();
  await see("error", "the disk is full at last");
  await see("error", "The empty file “heavy.tar” is left");
  await run("window.fullAtLast = window.irremovable = false; window.forbidden = true");
  await press("heavy.bin");
  await see("error", "“heavy.bin” cannot be written: not permitted");
  assert.equal(await run("return window.picked.at(-1).left"), false);
  // A stream that is cancelled leaves none.
  await run("window.forbidden = false");
  await stream();
  await until("a part", "return window.parts.sent > 0");
  await press("Cancel");
  await picked("aborted");
  await see("error", "Cancelled.");
  assert.equal(await run("return window.picked.at(-1).left"), false);
  await see("about", "ext4");
  // A dialog that is closed is no error.
  await run("window.refusing = true; document.getElementById('error').textContent = ''");
  const before = await run("return window.picked.length");
  await press("Download this folder");
  await until("the end of it", "return document.getElementById('cancel').hidden && document.getElementById('error').hidden");
  assert.equal(await run("return window.picked.length"), before);
  await run("delete window.showSaveFilePicker");

  await opened("disk.qcow2");
  await press("Partition 1");
  await see("about", "ext4");
  await see("tall", "inside");
  await shot("partition");
  // Another volume ends what runs: neither the download nor the check of partition 1 is taken for partition 2's.
  await press("same");
  await press("Partition 2");
  await press("Check");
  await press("Partition 1");
  await press("Partition 2");
  await see("tall", "same");
  assert.equal(await run("return document.getElementById('check').textContent"), "");
  await press("same");
  assert((await download("same")).every((byte) => byte === 0x42), "a file of partition 2 has its bytes");

  await opened("packed.qcow2");
  await see("about", "f2fs");
  await press("zstd-2");
  await press("mixed");
  assert.deepEqual(await download("mixed"), readFileSync(`${folder}/mixed.bin`));

  await opened("damaged.ext4");
  await press("Check");
  await see("check", "issue");
  const issues = await run("return [...document.querySelectorAll('#check li')].map((li) => li.textContent)");
  assert(issues.some((text) => /bitmap/.test(text)), `${issues}`);
  await shot("damaged");

  // A trap ends in a message, and the page works after it.
  await opened("small.f2fs");
  await see("crumbs", "2 entries");
  const trap = [...readFileSync(`${folder}/trap.wasm`)];
  await evaluated("window.workers.at(-1).postMessage({ module: await WebAssembly.compile(new Uint8Array(args[0])), file: document.getElementById('file').files[0] })", trap);
  await press("Check");
  await see("error", "The reader stopped on this image: unreachable");
  await see("error", "It was started again");
  await shot("trap");
  await press("Files");
  await press("folder");
  await see("tall", "large.bin");
  assert.equal(await run("return document.getElementById('error').hidden"), true);
  await press("Check");
  await see("check", "No damage was found.");

  // Nothing leaves: the policy refuses each way out, and the log of the network has no request.
  const ways = await evaluated(`
    const refused = [];
    addEventListener("securitypolicyviolation", (e) => refused.push(e.effectiveDirective));
    await fetch(args[0]).then(() => refused.push("sent"), () => {});
    await new Promise((resolve) => { const i = new Image(); i.onload = i.onerror = resolve; i.src = args[0]; });
    navigator.sendBeacon(args[0], "x");
    await new Promise((resolve) => setTimeout(resolve, 100));
    // The worker's policy is the page's.
    const worker = new Worker(URL.createObjectURL(new Blob(["onmessage = ({ data }) => fetch(data).then(() => postMessage('worker sent'), () => postMessage('worker refused'));"])));
    refused.push(await new Promise((resolve) => { worker.onmessage = ({ data }) => resolve(data); worker.postMessage(args[0]); }));
    return refused.sort();`, address);
  assert.deepEqual(ways, ["connect-src", "connect-src", "img-src", "worker refused"]);
  assert.equal(reached, 0);
  const log = await call("POST", "/se/log", { type: "performance" });
  const urls = log.map((l) => JSON.parse(l.message).message).filter((m) => m.method === "Network.requestWillBeSent").map((m) => m.params.request.url);
  assert(urls.some((u) => u.startsWith("file:")), "the log has the page");
  assert.deepEqual(urls.filter((u) => !/^(file|blob|data):/.test(u) && u !== address), []);

  // Without the policy the server is reached: the test above could fail.
  await call("POST", "/url", { url: address });
  assert.equal(await evaluated("return (await fetch(args[0])).text()", address), "reached");
  assert(reached >= 2);

  // A module that always traps is started twice, not forever.
  await call("POST", "/url", { url: `file://${folder}/trap.html` });
  for (const name of ["small.f2fs", "large.ext4"]) {
    await choose(name);
    await see("error", "stopped again");
  }
  assert.equal(await run("return window.workers.length"), 4);
  console.log(`${read} bytes read to list the root of a 2 GiB image`);
} finally {
  await end();
  outside.close();
}
