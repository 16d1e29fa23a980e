// Opens the page in Chromium, uses it as a person does, and prints what it found as JSON.
// Arguments: the page's URL, Chromium, the folder of the npm packages, the folder for screenshots.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";

const [url, chromium, packages, shots] = process.argv.slice(2);
const require = createRequire(join(packages, "package.json"));
const puppeteer = (await import(require.resolve("puppeteer-core"))).default;
const axe = readFileSync(require.resolve("axe-core/axe.min.js"), "utf8");

const VIEWS = {
  desktop: { width: 1280, height: 1220, colors: "light" },
  dark: { width: 1280, height: 900, colors: "dark" },
  phone: { width: 390, height: 844, colors: "light", isMobile: true, hasTouch: true },
};
const found = { errors: [], foreign: [], axe: {}, overflow: {} };
const browser = await puppeteer.launch({
  executablePath: chromium, headless: true, args: ["--no-sandbox", "--disable-gpu", "--hide-scrollbars"],
});

async function open(view) {
  const page = await browser.newPage();
  page.on("console", (message) => { if (message.type() === "error" || message.type() === "warn") found.errors.push(message.text()); });
  page.on("pageerror", (error) => found.errors.push(String(error)));
  page.on("request", (request) => {
    const to = new URL(request.url());
    if (to.protocol !== "data:" && to.origin !== new URL(url).origin) found.foreign.push(request.url());
  });
  await page.setViewport(view);
  await page.emulateMediaFeatures([{ name: "prefers-color-scheme", value: view.colors }]);
  // The page reads every five seconds; here a hundred times as often.
  await page.evaluateOnNewDocument(() => {
    const real = window.setTimeout;
    window.setTimeout = (work, ms) => real(work, ms === 5000 ? 50 : ms);
  });
  await page.goto(url, { waitUntil: "load" });
  await page.waitForSelector("#rows tr");
  return page;
}
const text = (page, selector) => page.$eval(selector, (node) => node.textContent);
const names = (page) => page.$$eval("#rows th bdi", (nodes) => nodes.map((node) => node.textContent));

for (const [name, view] of Object.entries(VIEWS)) {
  const page = await open(view);
  await page.waitForFunction(() => document.querySelectorAll("#way polyline").length >= 3
    && document.querySelector("#way polyline").getAttribute("points").split(" ").length > 12);
  // axe itself is not of the page: it comes by the debugger, past the page's policy.
  await page.evaluate(axe);
  const result = await page.evaluate(() => window.axe.run(document, { resultTypes: ["violations"] }));
  found.axe[name] = result.violations.map((each) => ({
    id: each.id, impact: each.impact, nodes: each.nodes.map((node) => `${node.html.slice(0, 120)}: ${node.failureSummary.slice(0, 200)}`).slice(0, 3),
  }));
  found.overflow[name] = await page.evaluate(() => document.documentElement.scrollWidth - window.innerWidth);
  await page.screenshot({ path: join(shots, `page-${name}.png`), fullPage: false });
    await page.close();
}

const page = await open(VIEWS.desktop);
found.title = await page.title();
found.scripts = await page.$$eval("script", (nodes) => nodes.length);
found.count = await text(page, "#count");
found.first = (await names(page))[0];

// By keyboard alone: the first stop skips to the tables, then search, filter, and a header
await page.focus("#search");
await page.keyboard.type("<script>");
found.searched = await names(page);
found.searchCount = await text(page, "#count");
await page.$eval("#search", (node) => { node.value = ""; node.dispatchEvent(new Event("input")); });
await page.focus("#heads th[data-id=name] button");
await page.keyboard.press("Enter");
found.ascending = await page.$eval("#heads th[data-id=name]", (node) => node.getAttribute("aria-sort"));
const up = await names(page);
await page.keyboard.press("Enter");
found.descending = await page.$eval("#heads th[data-id=name]", (node) => node.getAttribute("aria-sort"));
const down = await names(page);
found.isSorted = [up, down].map((list) => list.every((name, at) => !at || (list === up ? list[at - 1] <= name : list[at - 1] >= name)));
found.focus = await page.evaluate(() => document.activeElement.textContent);
await page.select("#filter", "parked");
found.parked = await names(page);
found.why = await text(page, "#rows td.why");
await page.select("#filter", "");
found.tab = [];
await page.reload();
await page.waitForSelector("#rows tr");
for (let stop = 0; stop < 4; stop++) {
  await page.keyboard.press("Tab");
  found.tab.push(await page.evaluate(() => `${document.activeElement.tagName} ${document.activeElement.id || document.activeElement.textContent.slice(0, 20)}`));
}
found.searchMs = await page.evaluate(() => {
  const start = performance.now();
  const search = document.getElementById("search");
  search.value = "orders";
  search.dispatchEvent(new Event("input"));
  document.body.getBoundingClientRect();
  const took = performance.now() - start;
  search.value = "";
  search.dispatchEvent(new Event("input"));
  return Math.round(took);
});
found.rows = (await names(page)).length;
found.paint = await page.evaluate(() => performance.getEntriesByName("first-contentful-paint")[0]?.startTime ?? null);
// A selected command stays selected while figures change
found.alive = await page.evaluate(async () => {
  const node = document.querySelector("#rows tr");
  await new Promise((resolve) => setTimeout(resolve, 600));
  return document.body.contains(node);
});
// The policy reports this one as an error; the others were counted before.
page.removeAllListeners("console");
found.inline = await page.evaluate(() => {
  try { document.body.innerHTML = "<b>x</b>"; return "allowed"; } catch (error) { return error.name; }
});
await browser.close();
console.log(JSON.stringify(found));
