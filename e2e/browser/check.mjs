// Checks flanneld's status page in a headless Chromium.
//
// Usage: CHROMIUM=/usr/bin/chromium BROWSER_MODULES=DIR node check.mjs JOB
//   JOB is a file, or - for stdin. DIR contains node_modules (npm ci with this folder's package-lock.json).
//
// The job is one JSON object:
//   url               the page
//   variants          [{width, height, scheme: "light"|"dark", shot: "FILE.png"|null}]: each is opened and checked
//   expect            {title_contains, texts: [...]}: what the page must show, in every variant
//   reach             {from, to, state}|null: picks this direction with the keyboard only, by the search and by the arrow keys
//   open_ms           how long the page stays open, in the first variant, to check that it does not grow
//   until_silent_ms   prints `open`, waits for the line `killed` on stdin, then for the page to report that the daemon does not respond; fails if that takes longer
//   until_back_ms     after that prints `silent`, waits for the line `started`, then for the page to recover; fails if that takes longer
//
// The last line of stdout is {"ok", "problems", "silent_after_ms", "back_after_ms"}. The exit code is 0 if ok, 1 if not, 2 if the job cannot be read.
import { createRequire } from "node:module";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import readline from "node:readline";
import { pathToFileURL } from "node:url";

const READY_MS = 15000;
const NARROW = 500;
const problems = [];
const report = { ok: false, problems, silent_after_ms: null, back_after_ms: null };
const problem = text => { if (!problems.includes(text)) problems.push(text); };
const sleep = ms => new Promise(done => setTimeout(done, ms));

// Lines of stdin that wait for a reader, and readers that wait for a line. The interface is opened only when a line is needed.
const lines = [], readers = [];
let ended = false, input = null;
function line() {
  if (!input) {
    input = readline.createInterface({ input: process.stdin });
    input.on("line", text => readers.length ? readers.shift()(text) : lines.push(text));
    input.on("close", () => { ended = true; for (const reader of readers.splice(0)) reader(null); });
  }
  return lines.length ? Promise.resolve(lines.shift()) : ended ? Promise.resolve(null) : new Promise(done => readers.push(done));
}
async function lineThat(wanted) {
  for (let text; (text = await line()) !== null;) if (text.trim() === wanted) return true;
  problem(`stdin ended before the line "${wanted}"`);
  return false;
}
async function readJob(from) {
  if (from && from !== "-") return JSON.parse(readFileSync(from, "utf8"));
  // More lines can follow the job, so it ends where it is complete.
  let text = "", failure = new Error("stdin is empty");
  for (let next; (next = await line()) !== null;) {
    text += `${next}\n`;
    try { return JSON.parse(text); } catch (error) { failure = error; }
  }
  throw failure;
}

// Opens the page and records what it must not do. `stopped` is set while the daemon is stopped: only then may a request fail.
async function open(browser, job, variant, { bypassCSP = false, label }) {
  const page = await browser.newPage();
  const watch = { stopped: false };
  const origin = new URL(job.url).origin;
  await page.setViewport({ width: variant.width, height: variant.height, deviceScaleFactor: 1, hasTouch: variant.width < NARROW });
  await page.emulateMediaFeatures([{ name: "prefers-color-scheme", value: variant.scheme ?? "light" }]);
  if (bypassCSP) await page.setBypassCSP(true);
  page.on("dialog", dialog => { problem(`${label}: opened a dialog: ${dialog.message()}`); dialog.dismiss().catch(() => {}); });
  page.on("pageerror", error => problem(`${label}: script error: ${error.message}`));
  page.on("console", message => {
    if (watch.stopped && /Failed to load resource|net::ERR_/.test(message.text())) return;
    problem(`${label}: console ${message.type()}: ${message.text()}`);
  });
  page.on("request", request => {
    const url = request.url();
    if (!url.startsWith("data:") && new URL(url).origin !== origin) problem(`${label}: requested ${url}`);
  });
  // A violation is not always on the console. The event is dispatched in any case.
  await page.exposeFunction("cspViolation", text => problem(`${label}: content security policy: ${text}`));
  await page.evaluateOnNewDocument(() => document.addEventListener("securitypolicyviolation", event => window.cspViolation(`${event.violatedDirective} ${event.blockedURI}`)));
  const response = await page.goto(job.url, { waitUntil: "domcontentloaded", timeout: READY_MS });
  if (!response.ok()) problem(`${label}: HTTP status ${response.status()}`);
  if (!response.headers()["content-security-policy"]?.includes("default-src 'none'")) problem(`${label}: no Content-Security-Policy with default-src 'none'`);
  try {
    await page.waitForFunction(() => document.documentElement.dataset.ready === "1", { timeout: READY_MS });
  } catch {
    problem(`${label}: rendered no document within ${READY_MS / 1000} s`);
  }
  return { page, watch };
}

// Text that is visible to a reader, with any whitespace as one space.
const visibleText = page => page.evaluate(() => document.body.innerText.replace(/\s+/g, " "));

async function checkExpected(page, expect, label) {
  const title = await page.title();
  if (expect?.title_contains && !title.includes(expect.title_contains)) problem(`${label}: the title is "${title}" and does not contain "${expect.title_contains}"`);
  const wanted = (expect?.texts ?? []).map(text => text.replace(/\s+/g, " "));
  // Details of the picked pair arrive after the document.
  let missing = wanted;
  for (const until = Date.now() + 4000; missing.length && Date.now() < until; await sleep(100)) {
    const text = await visibleText(page);
    missing = wanted.filter(part => !text.includes(part));
  }
  for (const part of missing) problem(`${label}: does not show "${part}"`);
}

async function checkLayout(page, variant, label) {
  const least = variant.width < NARROW ? 40 : 24;
  const found = await page.evaluate(least => {
    const found = [], root = document.documentElement;
    if (root.scrollWidth > root.clientWidth) {
      const widest = [...document.querySelectorAll("body *")].filter(node => node.getBoundingClientRect().right > root.clientWidth + 1).map(node => `${node.localName}#${node.id}.${node.className}`).slice(0, 3);
      found.push(`scrolls sideways: ${root.scrollWidth} px in ${root.clientWidth} px (${widest.join(", ")})`);
    }
    const small = [];
    for (const node of document.querySelectorAll("button, input, select, textarea, summary, a[href], canvas[tabindex]")) {
      const box = node.getBoundingClientRect();
      // Not visible, or outside of the page until it has the focus (the skip link).
      if (!box.width || !box.height || box.right < 0 || box.bottom < 0 || getComputedStyle(node).visibility === "hidden") continue;
      const sentence = node.localName === "a" && [...node.parentNode.childNodes].some(other => other.nodeType === 3 && other.nodeValue.trim());
      if (!sentence && (box.width < least - .5 || box.height < least - .5)) small.push(`${node.localName} "${(node.getAttribute("aria-label") ?? node.textContent).slice(0, 40)}" ${Math.round(box.width)}×${Math.round(box.height)}`);
    }
    if (small.length) found.push(`${small.length} targets are smaller than ${least} px: ${small.slice(0, 3).join("; ")}`);
    return found;
  }, least);
  for (const text of found) problem(`${label}: ${text}`);
}

async function checkAccessibility(page, axe, label) {
  await page.evaluate(axe);
  const violations = await page.evaluate(async () => (await window.axe.run(document, { runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"], resultTypes: ["violations"] }))
    .violations.map(({ id, help, nodes }) => `${id}: ${help}: ${nodes.slice(0, 2).map(node => `${node.target.join(" ")} (${node.any[0]?.message ?? node.none[0]?.message ?? ""})`).join("; ")}`));
  for (const text of violations) problem(`${label}: axe: ${text}`);
}

// The picked pair, as the detail panel has it.
const picked = page => page.evaluate(() => {
  const { from, to, state } = document.getElementById("pair").dataset;
  return { from: Number(from), to: Number(to), state, text: document.querySelector("#pair h3")?.textContent ?? "" };
});
const focused = page => page.evaluate(() => { const node = document.activeElement; return { id: node.id, name: node.localName, cell: node.classList.contains("cell") }; });
async function tabTo(page, test, what) {
  for (let presses = 0; presses < 300; presses++) {
    if (test(await focused(page))) return true;
    await page.keyboard.press("Tab");
  }
  problem(`reach: 300 presses of Tab do not reach ${what}`);
  return false;
}
const isMap = at => at.name === "canvas" || at.cell;
async function checkPicked(page, reach, how) {
  await sleep(300);
  const pair = await picked(page);
  const wanted = `${reach.from} → ${reach.to}`;
  if (pair.text !== wanted || pair.state !== reach.state) problem(`reach: ${how} ends at "${pair.text}" (${pair.state}), not at "${wanted}" (${reach.state})`);
}
async function checkReach(page, job) {
  const { reach } = job;
  const { mesh } = await (await fetch(new URL("/api/v1/view", job.url))).json();
  const [row, column] = [reach.from, reach.to].map(name => mesh.nodes.findIndex(node => node.name === name));
  if (row < 0 || column < 0) return problem(`reach: the mesh does not have ${reach.from} and ${reach.to}`);
  await page.evaluate(() => document.activeElement?.blur());

  // By the search. Small meshes have none.
  const hasSearch = await page.evaluate(() => document.getElementById("search").checkVisibility());
  if (hasSearch && await tabTo(page, at => at.id === "search", "the search")) {
    await page.keyboard.type(`${reach.from} ${reach.to}`);
    await page.keyboard.press("Enter");
    await checkPicked(page, reach, "the search for both names");
    await page.keyboard.press("Enter");
    await checkPicked(page, reach, "Enter after the search");
    await page.keyboard.press("Escape");
    // By one name only: ends at a pair of this node, and the focus is on the map.
    await page.evaluate(() => document.getElementById("search").focus());
    await page.keyboard.down("Control");
    await page.keyboard.press("a");
    await page.keyboard.up("Control");
    await page.keyboard.type(reach.from);
    await page.keyboard.press("Enter");
    const pair = await picked(page);
    if (pair.from !== row && pair.to !== row) problem(`reach: the search for ${reach.from} ends at "${pair.text}"`);
    if (!isMap(await focused(page))) problem("reach: the focus is not on the map after the search");
  }

  // By the arrow keys, from the first pair. In a map of blocks each press moves by a block.
  if (!isMap(await focused(page)) && !await tabTo(page, isMap, "the map")) return;
  await page.keyboard.down("Control");
  await page.keyboard.press("Home");
  await page.keyboard.up("Control");
  const walk = async () => {
    for (let presses = 0, stuck = 0; presses < 2 * mesh.nodes.length + 50 && stuck < 4; presses++) {
      const at = await picked(page);
      if (at.from === row && at.to === column) return true;
      const down = at.from !== row && (at.to === column || presses % 2 === 0 || stuck > 1);
      await page.keyboard.press(down ? at.from < row ? "ArrowDown" : "ArrowUp" : at.to < column ? "ArrowRight" : "ArrowLeft");
      const next = await picked(page);
      stuck = next.from === at.from && next.to === at.to ? stuck + 1 : 0;
      // A worse pair in the same block is shown instead: the table behind Enter has both.
      if (Math.abs(next.from - row) < 10 && Math.abs(next.to - column) < 10 && (await focused(page)).name === "canvas") return false;
    }
    return false;
  };
  if (!await walk()) {
    if ((await focused(page)).name === "canvas") await page.keyboard.press("Enter");
    await walk();
  }
  await page.keyboard.press("Enter");
  await checkPicked(page, reach, "the arrow keys and Enter");
  const zoomed = (await focused(page)).cell;
  if (!zoomed) problem("reach: the focus is not on a cell after Enter");
  await page.keyboard.press("Escape");
  if (mesh.nodes.length > 24 && (await focused(page)).name !== "canvas") problem("reach: Escape does not lead back to the map of all nodes");
}

// Counts what a page that stays open must not accumulate.
async function size(page, session) {
  await session.send("HeapProfiler.collectGarbage");
  const { Nodes, JSEventListeners, JSHeapUsedSize } = await page.metrics();
  return { nodes: Nodes, listeners: JSEventListeners, heap: JSHeapUsedSize };
}
async function checkGrowth(page, ms, label) {
  const session = await page.createCDPSession();
  await session.send("HeapProfiler.enable");
  // The first documents fill caches.
  await sleep(Math.min(5000, ms / 3));
  const before = await size(page, session);
  await sleep(ms - Math.min(5000, ms / 3));
  const after = await size(page, session);
  if (after.nodes > before.nodes * 1.1 + 100) problem(`${label}: grew from ${before.nodes} to ${after.nodes} DOM nodes`);
  if (after.listeners > before.listeners + 5) problem(`${label}: grew from ${before.listeners} to ${after.listeners} listeners`);
  if (after.heap > before.heap * 1.5 + 4e6) problem(`${label}: grew from ${before.heap} to ${after.heap} bytes of script memory`);
  await session.detach();
}

const reportsSilence = page => page.evaluate(() => document.querySelector("#sentence h1").innerText.includes("does not respond") && document.documentElement.dataset.silent === "1");
// Polls until the page is silent, or is not, and returns the time that this took.
async function waitForSilence(page, wanted, limit) {
  const begin = Date.now();
  while (Date.now() - begin < limit + 5000) {
    if (await reportsSilence(page) === wanted) return Date.now() - begin;
    await sleep(100);
  }
  return null;
}
async function checkSilence({ page, watch }, job, label) {
  console.log("open");
  watch.stopped = true;
  if (!await lineThat("killed")) return;
  report.silent_after_ms = await waitForSilence(page, true, job.until_silent_ms);
  if (report.silent_after_ms === null) return problem(`${label}: does not report that the daemon does not respond`);
  if (report.silent_after_ms > job.until_silent_ms) problem(`${label}: reported only after ${report.silent_after_ms} ms that the daemon does not respond`);
  await checkLayout(page, { width: page.viewport().width }, `${label}, silent`);
  if (!job.until_back_ms) return;
  console.log("silent");
  if (!await lineThat("started")) return;
  report.back_after_ms = await waitForSilence(page, false, job.until_back_ms);
  if (report.back_after_ms === null || report.back_after_ms > job.until_back_ms) problem(`${label}: did not recover within ${job.until_back_ms} ms after the daemon started`);
  watch.stopped = false;
}

async function run(job) {
  const require = createRequire(`${process.env.BROWSER_MODULES ?? import.meta.dirname}/`);
  const puppeteer = await import(pathToFileURL(require.resolve("puppeteer-core")));
  const axe = readFileSync(require.resolve("axe-core/axe.min.js"), "utf8");
  const profile = mkdtempSync(join(tmpdir(), "status-page-"));
  const browser = await (puppeteer.default ?? puppeteer).launch({
    executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium", userDataDir: profile, headless: false, timeout: 60000, protocolTimeout: 120000,
    args: ["--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--no-first-run", "--no-default-browser-check", "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-extensions",
      "--disable-default-apps", "--disable-domain-reliability", "--disable-client-side-phishing-detection", "--metrics-recording-only", "--no-pings", "--hide-scrollbars", "--mute-audio",
      // Chromium resolves no name but localhost: nothing leaves this machine.
      "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE localhost , EXCLUDE 127.0.0.1 , EXCLUDE " + new URL(job.url).hostname],
  });
  try {
    const variants = job.variants?.length ? job.variants : [{ width: 1280, height: 800, scheme: "light", shot: null }];
    for (const [k, variant] of variants.entries()) {
      const label = `${variant.width}×${variant.height} ${variant.scheme ?? "light"}`, last = k === variants.length - 1;
      const opened = await open(browser, job, variant, { label });
      await checkExpected(opened.page, job.expect, label);
      await checkLayout(opened.page, variant, label);
      if (variant.shot) await opened.page.screenshot({ path: variant.shot, fullPage: true, quality: /\.webp$/.test(variant.shot) ? 82 : undefined });
      // A load of its own, so that the others run with the page's own policy.
      const other = await open(browser, job, variant, { bypassCSP: true, label });
      await checkAccessibility(other.page, axe, label);
      await other.page.close();
      await opened.page.bringToFront();
      if (job.open_ms && k === 0) await checkGrowth(opened.page, job.open_ms, label);
      if (job.reach && last) {
        await checkReach(opened.page, job);
        await checkLayout(opened.page, variant, `${label}, after reach`);
      }
      if (job.until_silent_ms && last) await checkSilence(opened, job, label);
      await opened.page.close();
    }
  } finally {
    await browser.close();
    rmSync(profile, { recursive: true, force: true, maxRetries: 5 });
  }
}

let job;
try {
  job = await readJob(process.argv[2]);
} catch (error) {
  console.error(`cannot read the job: ${error.message}`);
  process.exit(2);
}
try {
  await run(job);
} catch (error) {
  problem(`the check failed: ${error.stack ?? error.message}`);
}
report.ok = problems.length === 0;
console.log(JSON.stringify(report));
process.exit(report.ok ? 0 : 1);
