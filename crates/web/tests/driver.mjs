// A headless Chromium, by chromedriver's own protocol.
import { spawn } from "node:child_process";
import { writeFileSync } from "node:fs";

// The port that chromedriver prints. Fails when it cannot be started, ends, or prints none for `limit` ms.
const portOf = async (driver, limit) => {
  let text = "", timer;
  const port = new Promise((resolve, reject) => {
    const fail = (why) => reject(new Error(`chromedriver ${why}: ${text}`));
    timer = setTimeout(() => fail("has no port"), limit);
    driver.on("error", (e) => fail(`does not start (${e.message})`));
    driver.on("exit", (code, signal) => fail(`ended (${code ?? signal})`));
    driver.stdout.on("data", (d) => { text += d; const m = /on port (\d+)\./.exec(text); if (m) resolve(m[1]); });
  });
  try {
    return await port;
  } catch (e) {
    driver.kill("SIGKILL");
    throw e;
  } finally {
    clearTimeout(timer);
  }
};

// Starts one. `saved`: where downloads go. `folder`: where pictures of the page go. `limit`: for chromedriver's start, in ms.
export async function browser(folder, saved, limit = 30_000) {
  const driver = spawn("chromedriver", ["--port=0"], { stdio: ["ignore", "pipe", "inherit"] });
  const port = await portOf(driver, limit);
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
  const evaluated = async (script, ...args) => {
    const value = await call("POST", "/execute/async", { script: `const done = arguments[arguments.length - 1]; (async (...args) => { ${script} })(...arguments).then((v) => done({ v }), (e) => done({ failed: String(e) }));`, args });
    if (value.failed) throw new Error(value.failed);
    return value.v;
  };
  // A click as a person makes it, on the element that a script gives: browsers refuse further downloads without one.
  const click = async (what, script, ...args) => {
    const e = await until(what, script, ...args);
    await call("POST", `/element/${Object.values(e)[0]}/click`, {});
  };
  const shot = async (name) => writeFileSync(`${folder}/${name}.png`, Buffer.from(await call("GET", "/screenshot"), "base64"));
  const end = async () => {
    if (session) await call("DELETE", "").catch(() => {});
    driver.kill();
  };
  try {
    const made = await call("POST", "", { capabilities: { alwaysMatch: { browserName: "chrome", "goog:loggingPrefs": { performance: "ALL", browser: "ALL" }, "goog:chromeOptions": {
      args: ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--window-size=1100,900"], prefs: { "download.default_directory": saved, "download.prompt_for_download": false, "profile.default_content_setting_values.automatic_downloads": 1 } } } } });
    session = `/${made.sessionId}`;
  } catch (e) {
    await end();
    throw e;
  }
  return { call, run, until, evaluated, click, shot, end };
}
