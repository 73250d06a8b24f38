// Runs the module of blockwright on one file, and implements the functions of WASI that it calls.
//
// Messages from the page: {module, file} once, then {id, request, as} one after another; `as` is `json`, `bytes` or `parts`. {taken} is the id of a stream
// of which the page has done with one more part.
// Messages to the page: {ready}, {id, text} or {id, bytes}, {id, error}, {id, event} (a part of a stream is one, too), {read} (bytes read so far), and
// {ended} when the module can do no more: the page then starts another worker.
//
// The module's writes of a stream wait for the page (JavaScript Promise Integration: the module is suspended). Browsers without it stream without waiting.
"use strict";

// Numbers of WASI snapshot preview 1.
const OK = 0, BADF = 8, INVAL = 28, IO = 29, NOENT = 44, NOSYS = 52, ROFS = 69;
const DIRECTORY = 3, REGULAR = 4, CHARACTER = 2;
const STDIN = 0, STDOUT = 1, STDERR = 2, ROOT = 3, IMAGE_FIRST = 4;
// Bytes of a stream that become a part of a Blob, which the browser may keep on disk.
const PART_BYTES = 8 << 20;
// Parts that the page may have and not yet have done with: one is written while the next one is made.
const PARTS_MAX = 2;
const SUSPENDS = "Suspending" in WebAssembly;

const reader = new FileReaderSync();
const encoder = new TextEncoder();
const decoder = new TextDecoder();

let instance = null;
let file = null;
let positions = new Map();
let bytesRead = 0;
let readTold = 0;
let readFailed = null;
let input = new Uint8Array(0);
let output = [];
let outputBytes = 0;
let streams = false;
let streamed = 0;
let pending = 0;
// Goes on with the module, when it is suspended.
let resume = null;
let queue = [];
let busy = false;
let words = "";
let current = null;

const memory = () => new DataView(instance.exports.memory.buffer);
const bytesAt = (at, length) => new Uint8Array(instance.exports.memory.buffer, at, length);

function tellRead(always) {
  const now = performance.now();
  if (always || now - readTold > 100) {
    readTold = now;
    postMessage({ read: bytesRead });
  }
}

// Fills ranges of memory from a function that gives at most so many bytes.
function scatter(ranges, count, done, give) {
  let total = 0;
  for (let n = 0; n < count; n++) {
    const at = memory().getUint32(ranges + 8 * n, true);
    const length = memory().getUint32(ranges + 8 * n + 4, true);
    const bytes = give(length);
    bytesAt(at, bytes.length).set(bytes);
    total += bytes.length;
    if (bytes.length < length) break;
  }
  memory().setUint32(done, total, true);
  return OK;
}

function readImage(fd, length) {
  const at = positions.get(fd);
  const end = Math.min(at + length, file.size);
  if (end <= at) return new Uint8Array(0);
  const bytes = new Uint8Array(reader.readAsArrayBuffer(file.slice(at, end)));
  positions.set(fd, at + bytes.length);
  bytesRead += bytes.length;
  tellRead(false);
  return bytes;
}

function keep(bytes) {
  output.push(bytes);
  outputBytes += bytes.length;
  if (streams && outputBytes >= PART_BYTES) flushPart();
}

function flushPart() {
  streamed += outputBytes;
  pending++;
  postMessage({ id: current, event: { event: "part", part: new Blob(output), bytes: streamed } });
  output = [];
  outputBytes = 0;
}

// The page has done with a part of a stream.
function taken(id) {
  if (id !== current) return;
  pending--;
  if (pending >= PARTS_MAX || !resume) return;
  resume();
  resume = null;
}

// Standard error: events, and what a panic says.
function hear(bytes) {
  words += decoder.decode(bytes, { stream: true });
  for (let end = words.indexOf("\n"); end >= 0; end = words.indexOf("\n")) {
    const line = words.slice(0, end);
    words = words.slice(end + 1);
    if (line.startsWith('{"event"')) postMessage({ id: current, event: JSON.parse(line) });
    else lastWords.push(line);
  }
}
let lastWords = [];

function stat(at, type, size) {
  const view = memory();
  for (let n = 0; n < 8; n++) view.setBigUint64(at + 8 * n, 0n, true);
  view.setUint8(at + 16, type);
  view.setBigUint64(at + 24, 1n, true);
  view.setBigUint64(at + 32, BigInt(size), true);
  return OK;
}

const wasi = {
  args_get: () => OK,
  args_sizes_get: (count, bytes) => (memory().setUint32(count, 0, true), memory().setUint32(bytes, 0, true), OK),
  environ_get: () => OK,
  environ_sizes_get: (count, bytes) => (memory().setUint32(count, 0, true), memory().setUint32(bytes, 0, true), OK),
  clock_time_get(_clock, _precision, at) {
    memory().setBigUint64(at, BigInt(Date.now()) * 1000000n, true);
    return OK;
  },
  random_get: (at, length) => (crypto.getRandomValues(bytesAt(at, length)), OK),
  sched_yield: () => OK,
  proc_exit(code) {
    throw new Error(`the module ended with code ${code}`);
  },
  fd_prestat_get(fd, at) {
    if (fd !== ROOT) return BADF;
    memory().setUint32(at, 0, true);
    memory().setUint32(at + 4, 1, true);
    return OK;
  },
  fd_prestat_dir_name: (fd, at) => (fd === ROOT ? (bytesAt(at, 1).set([47]), OK) : BADF),
  fd_fdstat_get(fd, at) {
    const view = memory();
    for (let n = 0; n < 3; n++) view.setBigUint64(at + 8 * n, 0n, true);
    view.setUint8(at, fd === ROOT ? DIRECTORY : positions.has(fd) ? REGULAR : CHARACTER);
    view.setBigUint64(at + 8, ~0n & 0x1fffffffn, true);
    view.setBigUint64(at + 16, ~0n & 0x1fffffffn, true);
    return OK;
  },
  fd_fdstat_set_flags: () => OK,
  fd_filestat_get: (fd, at) => (positions.has(fd) ? stat(at, REGULAR, file.size) : BADF),
  path_filestat_get(_fd, _flags, path, length, at) {
    return decoder.decode(bytesAt(path, length).slice()) === "image" ? stat(at, REGULAR, file.size) : NOENT;
  },
  path_open(_fd, _flags, path, length, create, rights, _inherited, _state, opened) {
    if (decoder.decode(bytesAt(path, length).slice()) !== "image") return NOENT;
    // Creating, and the right to write.
    if (create !== 0 || (rights & 64n) !== 0n) return ROFS;
    let fd = IMAGE_FIRST;
    while (positions.has(fd)) fd++;
    positions.set(fd, 0);
    memory().setUint32(opened, fd, true);
    return OK;
  },
  fd_seek(fd, offset, whence, at) {
    if (!positions.has(fd)) return BADF;
    const base = [0, positions.get(fd), file.size][whence];
    const position = base + Number(offset);
    if (!(position >= 0)) return INVAL;
    positions.set(fd, position);
    memory().setBigUint64(at, BigInt(position), true);
    return OK;
  },
  fd_read(fd, ranges, count, done) {
    if (fd === STDIN) {
      return scatter(ranges, count, done, (length) => {
        const bytes = input.subarray(0, length);
        input = input.subarray(bytes.length);
        return bytes;
      });
    }
    if (!positions.has(fd)) return BADF;
    try {
      return scatter(ranges, count, done, (length) => readImage(fd, length));
    } catch (e) {
      // The file was changed or removed since it was chosen.
      readFailed = e;
      return IO;
    }
  },
  fd_write(fd, ranges, count, done) {
    if (fd !== STDOUT && fd !== STDERR) return BADF;
    let total = 0;
    for (let n = 0; n < count; n++) {
      const at = memory().getUint32(ranges + 8 * n, true);
      const length = memory().getUint32(ranges + 8 * n + 4, true);
      const bytes = bytesAt(at, length).slice();
      if (fd === STDOUT) keep(bytes);
      else hear(bytes);
      total += length;
    }
    memory().setUint32(done, total, true);
    if (!SUSPENDS || pending < PARTS_MAX) return OK;
    return new Promise((resolve) => { resume = () => resolve(OK); });
  },
  fd_close: (fd) => (positions.delete(fd) || fd <= ROOT ? OK : BADF),
};

async function start(module, chosen) {
  file = chosen;
  // What the module imports and never calls here is refused when it is called.
  const missing = WebAssembly.Module.imports(module).filter((i) => !(i.name in wasi));
  const refused = Object.fromEntries(missing.map((i) => [i.name, () => NOSYS]));
  const waits = SUSPENDS ? { fd_write: new WebAssembly.Suspending(wasi.fd_write) } : {};
  instance = await WebAssembly.instantiate(module, { wasi_snapshot_preview1: { ...wasi, ...waits, ...refused } });
  const called = (f) => (SUSPENDS ? WebAssembly.promising(f) : f);
  if (instance.exports._initialize) await called(instance.exports._initialize)();
  answerRequest = called(instance.exports.serve);
  postMessage({ ready: true });
}

function collected() {
  const all = new Uint8Array(outputBytes);
  let at = 0;
  for (const bytes of output) {
    all.set(bytes, at);
    at += bytes.length;
  }
  return all;
}

let answerRequest = null;
let started = null;

// One request after another: another one may come before the module has started, and while it is suspended.
async function serveAll(data) {
  queue.push(data);
  if (busy) return;
  busy = true;
  await started;
  while (queue.length) await serve(queue.shift());
  busy = false;
}

async function serve({ id, request, as }) {
  current = id;
  pending = 0;
  input = encoder.encode(JSON.stringify(request));
  output = [];
  outputBytes = 0;
  streams = as === "parts";
  streamed = 0;
  readFailed = null;
  lastWords = [];
  try {
    answer(id, as, await answerRequest());
  } catch (e) {
    // A trap: memory is as it was left, so nothing more can be asked of this instance. Or the answer was too large for the browser.
    tellRead(true);
    queue = [];
    postMessage({ ended: [...lastWords, String(e.message ?? e)].join(" ") });
    close();
  }
}

// Sends what the module has answered with this code.
function answer(id, as, code) {
  tellRead(true);
  if (code !== 0) {
    let text = `the module's answer is ${code}`;
    if (code === 1) text = JSON.parse(decoder.decode(collected()).trimEnd().split("\n").pop()).error;
    if (readFailed) text = `The file cannot be read any more (${readFailed.message}). Was it changed or removed? Choose it again.`;
    postMessage({ id, error: text });
  } else if (as === "parts") {
    if (outputBytes) flushPart();
    postMessage({ id, text: "null" });
  } else if (as === "bytes") {
    const bytes = collected();
    postMessage({ id, bytes }, [bytes.buffer]);
  } else {
    postMessage({ id, text: decoder.decode(collected()) });
  }
  output = [];
}

onmessage = ({ data }) => {
  if (data.module) {
    started = start(data.module, data.file).catch((e) => {
      queue = [];
      postMessage({ ended: String(e.message ?? e) });
      close();
    });
  } else if (data.taken !== undefined) {
    taken(data.taken);
  } else {
    serveAll(data);
  }
};
