// Zooms in maps in a headless Chromium: node map.mjs FOLDER. FOLDER has ext4.html, a map of a volume with an issue, and f2fs.html.
import assert from "node:assert/strict";
import { browser } from "./driver.mjs";
const [folder] = process.argv.slice(2);
const { call, run, until, click, shot, end } = await browser(folder, folder);
const act = (device) => call("POST", "/actions", { actions: [device] });
const wheel = (deltaY, deltaX = 0) => act({ type: "wheel", id: "wheel", actions: [{ type: "scroll", x: 500, y: 300, deltaX, deltaY, duration: 0, origin: "viewport" }] });
const key = (value) => act({ type: "key", id: "key", actions: [{ type: "keyDown", value }, { type: "keyUp", value }] });
const pointer = (...actions) => act({ type: "pointer", id: "mouse", parameters: { pointerType: "mouse" }, actions });
const ESCAPE = "\uE00C", RIGHT = "\uE014";
const view = () => run("return { from, to, blocks, text: document.getElementById('range').textContent, tip: document.getElementById('tip').textContent }");
// Waits until the view has changed, and was drawn.
const changed = async (before, do_it) => {
  await do_it();
  await until("another view", "return from !== arguments[0] || to !== arguments[1]", before.from, before.to);
  return view();
};
const size = (v) => v.to - v.from;
// The colour in the middle of the first square.
const first = () => run("return new Promise((r) => requestAnimationFrame(() => requestAnimationFrame(() => { const half = grid.side >> 1; r([...document.getElementById('map').getContext('2d').getImageData(half, half, 1, 1).data]); })))");

try {
  await call("POST", "/url", { url: `file://${folder}/ext4.html` });
  let whole = await view();
  assert.deepEqual([whole.from, whole.to], [0, whole.blocks]);
  await shot("map-whole");
  // A pixel of the canvas is one of the screen.
  assert(await run("const m = document.getElementById('map'); return m.width === m.clientWidth * devicePixelRatio && m.height === m.clientHeight * devicePixelRatio"));

  // The wheel zooms, and a wheel to the side does not.
  let now = await changed(whole, () => wheel(-120));
  assert(size(now) < size(whole), "the wheel zooms in");
  await wheel(0, 120);
  assert.equal(size(await view()), size(now));
  let before = now;
  now = await changed(before, () => wheel(120));
  assert(size(now) > size(before), "and out");

  // Keys, down to one block and back. The wheel left the map without the focus.
  for (let n = 0; n < 60 && size(await view()) > 1; n++) await key("+");
  now = await view();
  assert.equal(size(now), 1);
  await shot("map-block");
  now = await changed(now, () => key("-"));
  assert.equal(size(now), 2);
  now = await changed(now, () => key(ESCAPE));
  assert.equal(size(now), now.blocks);
  assert.notDeepEqual(await first(), await run("return [...paper, 255]"), "the first block of an ext4 is in use");

  // Dragging and the arrows move, and no more than that.
  now = await changed(now, () => wheel(-120));
  before = await changed(now, () => wheel(-120));
  now = await changed(before, () => pointer({ type: "pointerMove", x: 500, y: 300 }, { type: "pointerDown", button: 0 }, { type: "pointerMove", x: 450, y: 300 }, { type: "pointerUp", button: 0 }));
  assert(now.from > before.from && size(now) === size(before), "dragged");
  before = now;
  now = await changed(before, () => key(RIGHT));
  assert(now.from > before.from && size(now) === size(before), "moved");
  before = await view();
  await pointer({ type: "pointerMove", x: 300, y: 250 });
  assert.equal((await view()).from, before.from, "a pointer that is not pressed drags nothing");

  // A link to an issue brings its blocks into sight, and describes them.
  const link = "return document.querySelector('#lists a')";
  const [begin, last] = await run("const [a, b] = document.querySelector('#lists a').textContent.split(' to ').map(Number); return [a, b ?? a]");
  now = await changed(await view(), () => click("a link", link));
  await until("the block", "return new RegExp(arguments[0]).test(document.getElementById('tip').textContent)", `^block ${begin}, group \\d+, byte [\\d,]+: .+ 1 \\(run `);
  assert(begin >= now.from && last < now.to && size(now) <= Math.max(32, last - begin + 1), JSON.stringify(now));
  assert(await run("const b = document.getElementById('map').getBoundingClientRect(); return b.bottom > 0 && b.top < innerHeight && b.bottom <= innerHeight"), "the map is in sight");
  await shot("map-issue");
  // The same link once more, after another view.
  before = now;
  now = await changed(before, () => key(ESCAPE));
  now = await changed(now, () => click("the link", link));
  assert.deepEqual([now.from, now.to], [before.from, before.to]);

  // One kind alone.
  await key(ESCAPE);
  await until("the whole", "return to - from === blocks");
  await click("a kind", "return [...document.querySelectorAll('#legend label')].find((l) => l.textContent.includes('free'))");
  assert.equal(await run("return document.querySelectorAll('#legend .off').length"), (await run("return D.kinds.length")) - 1);

  // f2fs: the age of segments has its own legend.
  await call("POST", "/url", { url: `file://${folder}/f2fs.html` });
  whole = await view();
  assert(await run("const m = document.getElementById('mode'); if (m.hidden) return false; m.value = 'age'; m.dispatchEvent(new Event('change')); return document.getElementById('legend').hidden && document.getElementById('ages').textContent.includes('before the last checkpoint')"));
  now = await changed(whole, () => wheel(-120));
  assert(size(now) < size(whole));
  await shot("map-age");

  const log = await call("POST", "/se/log", { type: "browser" });
  assert.deepEqual(log.map((l) => l.message), []);
} finally {
  await end();
}
