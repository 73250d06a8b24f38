const $ = (id) => document.getElementById(id);
// Downloads that may be larger than LARGE are written to the disk as they are read, where the browser can.
const ROW = 28, WINDOW = 200, READ = 1 << 20, LARGE = 64 << 20;
let worker = null, file = null, part = null, waiting = new Map(), nextId = 1, starts = 0;
let path = "/", total = 0, pages = new Map(), shown = 0;
// The number of the volume that is looked at. What was asked about an earlier one is not shown.
let current = 0;
// Bytes in use on it.
let used = 0;

const human = (n) => {
  let unit = 0;
  for (; n >= (unit ? 1023.95 : 1024) && unit < 6; unit++) n /= 1024;
  return (unit ? n.toFixed(1) : n) + " " + ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"][unit];
};
// A coded name as people read it: what is no text is shown as U+FFFD, and what changes how text runs is visible.
const display = (name) => {
  const bytes = [];
  for (let n = 0; n < name.length; n++) {
    if (name[n] === "%") { bytes.push(parseInt(name.slice(n + 1, n + 3), 16)); n += 2; }
    else { const c = String.fromCodePoint(name.codePointAt(n)); bytes.push(...new TextEncoder().encode(c)); n += c.length - 1; }
  }
  return new TextDecoder().decode(new Uint8Array(bytes)).replace(/[\p{Cc}\p{Bidi_Control}]/gu, "\ufffd");
};
const element = (tag, text, attributes = {}) => {
  const e = document.createElement(tag);
  if (text !== undefined) e.textContent = text;
  for (const [k, v] of Object.entries(attributes)) k.startsWith("on") ? e.addEventListener(k.slice(2), v) : e.setAttribute(k, v);
  return e;
};
const status = (text) => { $("status").textContent = text; };
const fail = (text) => { $("error").hidden = !text; $("error").textContent = text ?? ""; if (text) status(""); };
// Ends what belongs to an image that is no longer the chosen one. No message for people.
const SUPERSEDED = new Error("another image was chosen");
const guarded = (f) => async (...args) => { fail(); try { await f(...args); } catch (e) { if (e !== SUPERSEDED) fail(e.message); } };
const counted = (n, one, many) => `${n} ${n === 1 ? one : many}`;

const module = (async () => {
  const packed = Uint8Array.from(atob($("module").textContent), (c) => c.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  return WebAssembly.compile(await new Response(stream).arrayBuffer());
})();
const workerUrl = URL.createObjectURL(new Blob([$("worker").textContent], { type: "text/javascript" }));

function stop(error) {
  worker?.terminate();
  worker = null;
  for (const { reject } of waiting.values()) reject(error);
  waiting.clear();
}

// Ends what runs with an error; the reader starts anew.
function interrupt(error) {
  stop(error);
  reopen().catch((e) => { if (e !== SUPERSEDED) fail(e.message); });
}

// The module trapped. The reader is started once more; when that traps, too, the page waits for the person.
function trapped(why, again) {
  const told = `The reader stopped on this image: ${why}.`;
  if (again) return stop(new Error(`${told} It was started again, and stopped again. Choose another image, or open this one anew.`));
  stop(new Error(told));
  const start = starts + 1;
  reopen(true).then(
    () => fail(`${told} It was started again: other views, files and images can be opened.`),
    (e) => { if (start === starts && e !== SUPERSEDED) fail(e.message); });
}

// `again`: whether this is the start after a trap.
async function startWorker(again = false) {
  const start = ++starts;
  stop(SUPERSEDED);
  const compiled = await module;
  if (start !== starts) throw SUPERSEDED;
  const mine = new Worker(workerUrl);
  worker = mine;
  await new Promise((resolve, reject) => {
    mine.onerror = (e) => {
      reject(new Error(e.message || "the worker does not start"));
      if (worker === mine) trapped(e.message || "the worker failed", again);
    };
    mine.onmessage = ({ data }) => {
      if (worker !== mine) return reject(SUPERSEDED);
      if (data.ready) return resolve();
      if (data.read !== undefined) { $("read").textContent = `${human(data.read)} read of ${human(file.size)}`; $("read").dataset.bytes = data.read; return; }
      if (data.ended) {
        reject(new Error(`The reader does not start: ${data.ended}.`));
        return trapped(data.ended, again);
      }
      const asked = waiting.get(data.id);
      if (!asked) return;
      if (data.event) {
        const done = asked.event?.(data.event);
        // The worker waits until a part is written. One that cannot be written ends the stream at once.
        if (data.event.event === "part") Promise.resolve(done).then(
          () => mine.postMessage({ taken: data.id }),
          (e) => { if (worker === mine && waiting.has(data.id)) interrupt(e); });
        return;
      }
      waiting.delete(data.id);
      // Opened: a later trap is another one.
      if (asked.request.op === "volume") again = false;
      data.error !== undefined ? asked.reject(new Error(data.error)) : asked.resolve(data.bytes ?? JSON.parse(data.text));
    };
    mine.postMessage({ module: compiled, file });
  });
  if (start !== starts) throw SUPERSEDED;
}

function ask(request, as = "json", event) {
  return new Promise((resolve, reject) => {
    if (!worker) return reject(new Error("The reader is stopped. Open the image anew."));
    const id = nextId++;
    waiting.set(id, { resolve, reject, event, request });
    worker.postMessage({ id, request, as });
  });
}

// Asks about the volume that is looked at now, and no longer once another one is chosen.
function here() {
  const mine = current;
  const check = () => { if (mine !== current) throw SUPERSEDED; };
  return async (...words) => { check(); const answer = await ask(...words); check(); return answer; };
}

const openImage = () => ask({ op: "open", name: file.name });

// After a stop: the same image and volume in another worker.
async function reopen(again = false) {
  await startWorker(again);
  await openImage();
  await ask({ op: "volume", part });
}

const open = guarded(async (chosen) => {
  file = chosen; part = null; current++;
  for (const id of ["disk", "volume"]) $(id).hidden = true;
  clearVolume();
  status(`Opening ${file.name} …`);
  await startWorker();
  const image = await openImage();
  status(`${file.name}: ${image.container}, ${human(image.bytes)}`);
  if (!image.table) return openVolume(null);
  $("disk").hidden = false;
  $("parts").replaceChildren(...image.table.partitions.map((p) => {
    const what = p.problem ?? (p.holds ? `${p.holds.noun}${p.holds.label ? ` “${p.holds.label}”` : ""}` : p.type);
    const b = element("button", `Partition ${p.number}${p.name ? ` (${p.name})` : ""}`, { onclick: () => openVolume(p.number) });
    b.disabled = Boolean(p.problem);
    const li = element("li");
    li.append(b, `${human(p.bytes)}, ${what}`);
    return li;
  }), ...image.table.remarks.map((text) => element("li", text)), ...(image.table.more ? [element("li", `and ${image.table.more} more`)] : []));
});

const openVolume = guarded(async (number) => {
  part = number; current++;
  clearVolume();
  $("volume").hidden = false;
  // Before the wait: another view may be chosen meanwhile.
  view("files");
  // What runs is about another volume.
  if (!worker || waiting.size) { await startWorker(); await openImage(); }
  try {
    const v = await ask({ op: "volume", part });
    used = v.bytes - v.freeBytes;
    $("about").textContent = `${v.format}${v.label ? ` “${v.label}”` : ""}: ${human(v.bytes)}, ${human(v.freeBytes)} free${v.format === "f2fs" ? "" : `; ${v.inodes - v.freeInodes} of ${v.inodes} inodes in use`}`;
    await list("/");
  } catch (e) {
    if (e === SUPERSEDED || !worker) throw e;
    throw new Error(`${e.message}\nIf this is a damaged volume, the views Check and Map may still say more.`);
  }
});

function view(name) {
  for (const id of ["files", "check", "map"]) $(id).hidden = id !== name;
  for (const b of document.querySelectorAll("[data-view]")) b.setAttribute("aria-pressed", b.dataset.view === name);
}

function clearVolume() {
  for (const id of ["check", "map"]) $(id).replaceChildren();
  $("about").textContent = "";
  clearRows();
}

function clearRows() { pages = new Map(); total = 0; shown++; $("tall").replaceChildren(); $("crumbs").replaceChildren(); }

async function list(to) {
  const first = await here()({ op: "list", path: to, first: 0, count: WINDOW });
  clearRows();
  path = to; total = first.total;
  pages.set(0, first.entries);
  const names = to.split("/").filter(Boolean);
  $("crumbs").replaceChildren(...["", ...names].flatMap((name, n) => [
    element("button", name ? display(name) : "/", { class: "link", onclick: long(() => list("/" + names.slice(0, n).join("/"))) }), element("span", n ? " / " : " ")]),
    element("span", counted(total, "entry", "entries")));
  if (first.trouble) fail(first.trouble);
  $("tall").style.height = `${total * ROW}px`;
  $("rows").scrollTop = 0;
  await draw();
}

const modeText = (m) => [6, 3, 0].map((s) => (m >> s & 4 ? "r" : "-") + (m >> s & 2 ? "w" : "-") + (m >> s & 1 ? "x" : "-")).join("");
const child = (name) => (path === "/" ? "" : path.replace(/\/$/, "")) + "/" + name;

function row(entry, n) {
  const leads = entry.kind === "symlink" ? entry.leadsTo : entry.kind;
  const text = display(entry.name) + (entry.target !== null && entry.target !== undefined ? ` → ${display(entry.target)}` : "");
  const open = leads === "directory" ? long(() => list(child(entry.name))) : leads === "file" ? long(() => download(entry)) : null;
  const e = element("div", undefined, { class: "row" });
  e.style.top = `${n * ROW}px`;
  e.append(open ? element("button", text, { class: "link", title: leads === "file" ? "Download" : "Open", onclick: open }) : element("span", text),
    element("span", entry.trouble ?? entry.kind ?? "unknown", { title: entry.trouble ?? "" }), element("span", entry.kind === "file" ? human(entry.size) : "", { class: "size" }),
    element("span", entry.modified === undefined ? "" : new Date(entry.modified * 1000).toString() === "Invalid Date" ? `${entry.modified} s` : new Date(entry.modified * 1000).toISOString().slice(0, 16).replace("T", " ")),
    element("span", entry.mode === undefined ? "" : modeText(entry.mode), { class: "mode" }));
  return e;
}

// Only the rows in sight are elements, and only their parts of the listing are asked for.
async function draw() {
  const mine = ++shown, listed = pages, ask = here();
  const from = Math.floor($("rows").scrollTop / ROW), to = Math.min(total, from + 40);
  for (let p = Math.floor(from / WINDOW); p * WINDOW < to; p++) {
    if (!listed.has(p)) {
      const asked = ask({ op: "list", path, first: p * WINDOW, count: WINDOW }).then((more) => more.entries);
      listed.set(p, asked);
      asked.catch(() => listed.delete(p));
    }
    listed.set(p, await listed.get(p));
    if (mine !== shown) return;
  }
  const rows = [];
  for (let n = from; n < to; n++) { const entry = listed.get(Math.floor(n / WINDOW))?.[n % WINDOW]; if (entry) rows.push(row(entry, n)); }
  $("tall").replaceChildren(...rows);
}

function save(blob, name) {
  const url = URL.createObjectURL(blob);
  element("a", "", { href: url, download: name.replace(/[/\\\ufffd]/g, "_") || "file" }).click();
  setTimeout(() => URL.revokeObjectURL(url), 60000);
}

// Where a download goes that has at most this many bytes: a file that is written while parts come, or one that is saved at the end.
async function destination(name, bytes) {
  let file = null, target = null, last = Promise.resolve();
  const parts = [];
  const failed = (e) => { throw new Error(`“${file.name}” cannot be written: ${e.message}`); };
  if (bytes > LARGE && window.showSaveFilePicker) {
    try {
      file = await showSaveFilePicker({ suggestedName: name });
    } catch (e) {
      // The person has closed the dialog.
      throw e.name === "AbortError" ? SUPERSEDED : e;
    }
  }
  return {
    async begin() { target = await file?.createWritable().catch(failed); },
    // Done when the part is written. Parts that come faster wait in order, and the first failure is that of all that follow.
    write(part) {
      if (!target) return void parts.push(part);
      last = last.then(() => target.write(part).catch(failed));
      last.catch(() => {});
      return last;
    },
    async close() {
      await last;
      target ? await target.close().catch(failed) : save(new Blob(parts, { type: "application/octet-stream" }), name);
    },
    // Removes what there is of it. The browser has made an empty file, or emptied one, when the person chose it. What is left is said.
    async discard() {
      if (!file) return "";
      await target?.abort().catch(() => {});
      try { await file.remove(); return ""; } catch { return `The empty file “${file.name}” is left: this browser does not let the page remove it.`; }
    },
  };
}

// Calls `fill` with a destination, and closes it when that was done.
async function into(name, bytes, fill) {
  const to = await destination(name, bytes);
  try {
    await to.begin();
    await fill(to);
    await to.close();
  } catch (e) {
    const left = await to.discard();
    if (!left) throw e;
    throw new Error(e === SUPERSEDED ? left : `${e.message}\n${left}`);
  }
}

async function download(entry) {
  const from = child(entry.name), name = display(entry.name), ask = here();
  await into(name, entry.leadsToBytes ?? entry.size, async (to) => {
    for (let offset = 0; ;) {
      const bytes = await ask({ op: "read", path: from, offset, bytes: READ }, "bytes");
      if (bytes.length === 0) break;
      await to.write(new Blob([bytes]));
      offset += bytes.length;
      status(`${name}: ${human(offset)}`);
    }
  });
}

// What a person may want to end. Cancel appears when it takes long.
let running = 0;
function long(run) {
  const tell = (e) => {
    if (e.event === "progress") status(`${e.phase}: ${e.done} of ${e.total}`);
    if (e.event === "part") status(human(e.bytes));
  };
  return guarded(async () => {
    running++;
    setTimeout(() => { $("cancel").hidden = !running; }, 300);
    try { await run(tell); } finally { if (!--running) $("cancel").hidden = true; }
  });
}
$("tar").onclick = long(async (tell) => {
  const lost = [], from = path, ask = here();
  let sum = { unreadable: 0, sockets: 0 }, bytes = 0;
  // A stream's size is not known before its end. It is not much more than what is in use, unless files have holes.
  await into((from.split("/").filter(Boolean).map(display).pop() ?? "root") + ".tar", used, (to) => ask({ op: "export", path: from }, "parts", (e) => {
    if (e.event === "unreadable" && lost.length < 20) lost.push(e.text);
    if (e.event === "exported") sum = e;
    tell(e);
    if (e.event === "part") { bytes = e.bytes; return to.write(e.part); }
  }));
  status(`${human(bytes)} saved${sum.sockets ? `, without ${counted(sum.sockets, "socket", "sockets")}` : ""}`);
  if (sum.unreadable) fail(`${counted(sum.unreadable, "entry", "entries")} could not be read:\n${lost.join("\n")}`);
});
const check = long(async (tell) => {
  const c = await here()({ op: "check" }, "json", tell);
  status("");
  const head = c.clean ? "No damage was found." : `${counted(c.issues.length + c.more, "issue", "issues")}.`;
  const items = element("ol");
  items.append(...c.issues.map((i) => { const li = element("li"); li.append(element("span", i.severity, { class: "severity" }), ` ${i.text}`); return li; }));
  $("check").replaceChildren(element("p", `${head} ${counted(c.files, "file", "files")} and ${counted(c.directories, "directory", "directories")} were checked. Nothing was changed.`), items, ...(c.more ? [element("p", `and ${c.more} more`)] : []));
});
const map = long(async (tell) => {
  const m = await here()({ op: "map" }, "json", tell);
  status("");
  const src = URL.createObjectURL(new Blob([m.svg], { type: "image/svg+xml" }));
  const drawn = () => URL.revokeObjectURL(src);
  const img = element("img", undefined, { alt: `Map: ${m.kinds.map((k) => `${k.label} ${human(k.bytes)}`).join(", ")}`, src, onload: drawn, onerror: drawn });
  const zoom = element("button", "Download the map to zoom in (HTML)", { onclick: long(async (t) => save(new Blob([await here()({ op: "map-page" }, "bytes", t)], { type: "text/html" }), "map.html")) });
  const problems = element("ul");
  const more = m.moreProblems ? [`and ${m.moreProblems} more`] : [];
  problems.append(...[...m.problems, ...more, ...m.fragmented].map((text) => element("li", text)));
  $("map").replaceChildren(zoom, img, problems);
});
// A view is asked for once for each volume, unless that failed.
const views = { check, map }, begun = {};
for (const b of document.querySelectorAll("[data-view]")) {
  b.onclick = async () => {
    const name = b.dataset.view;
    view(name);
    if (!views[name] || $(name).firstChild || begun[name] === current) return;
    begun[name] = current;
    await views[name]();
    if (!$(name).firstChild) delete begun[name];
  };
}
$("cancel").onclick = guarded(async () => { current++; stop(new Error("Cancelled.")); status("Cancelled."); await reopen(); });
// A message stays while a person scrolls.
$("rows").onscroll = () => draw().catch((e) => { if (e !== SUPERSEDED) fail(e.message); });
$("file").onchange = () => $("file").files[0] && open($("file").files[0]);
for (const name of ["dragover", "dragleave", "drop"]) {
  addEventListener(name, (e) => { e.preventDefault(); $("drop").classList.toggle("over", name === "dragover"); if (name === "drop" && e.dataTransfer.files[0]) open(e.dataTransfer.files[0]); });
}
