// Builds the page into the Python package. The names of the files have no digests: the server sends an ETag for each.
import { readdirSync, readFileSync } from "node:fs";
import { defineConfig, type Plugin } from "vite";

/** The packages whose code is in the script. */
const PACKAGES = ["@preact/signals", "@preact/signals-core", "@tanstack/virtual-core", "marked", "preact"];

/** Writes the licences of the packages into a file beside the script. */
function notices(): Plugin {
  return {
    name: "notices",
    generateBundle() {
      const texts = PACKAGES.map((name) => {
        const folder = new URL(`./node_modules/${name}/`, import.meta.url);
        const { version, license } = JSON.parse(readFileSync(new URL("package.json", folder), "utf-8")) as Record<string, string>;
        const file = readdirSync(folder).find((entry) => /^licen[cs]e/i.test(entry));
        const text = file ? readFileSync(new URL(file, folder), "utf-8").replaceAll("\r\n", "\n").trim() : "";
        return `${name} ${version}, ${license}\n\n${text}\n`;
      });
      const source = `The script of this page contains these packages.\n\n${texts.join("\n----\n\n")}`;
      this.emitFile({ type: "asset", fileName: "notices.txt", source });
    },
  };
}

export default defineConfig({
  base: "./",
  plugins: [notices()],
  oxc: { jsx: { runtime: "automatic", importSource: "preact" } },
  worker: { format: "es", rolldownOptions: { output: { entryFileNames: "[name].js" } } },
  build: {
    outDir: "../loopline/server/page",
    emptyOutDir: true,
    target: "es2022",
    modulePreload: false,
    assetsInlineLimit: 0,
    rolldownOptions: {
      output: {
        entryFileNames: "[name].js",
        chunkFileNames: "[name].js",
        assetFileNames: "[name][extname]",
      },
    },
  },
});
