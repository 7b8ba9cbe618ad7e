// Runs a Python file in Pyodide under node: node _pyodide.mjs PYODIDE FILE [ARCHIVE or ""] [ARGUMENTS]. The folder of
// Pyodide is at /pyodide, and what is in the archive can be imported.
import { readFileSync } from "node:fs"
import { resolve } from "node:path"

const [pyodide, file, archive, ...words] = process.argv.slice(2)
try {
  const { loadPyodide } = await import(resolve(pyodide, "pyodide.mjs"))
  const python = await loadPyodide({ indexURL: resolve(pyodide), packages: archive ? ["numpy", "scipy"] : [] })
  python.mountNodeFS("/pyodide", resolve(pyodide))
  if (archive) python.unpackArchive(new Uint8Array(readFileSync(archive)), "zip", { extractDir: "/netsor" })
  python.runPython(`import sys; sys.path.insert(0, "/netsor"); sys.argv[1:] = ${JSON.stringify(words)}`)
  python.runPython(readFileSync(file, "utf8"), { filename: file })
} catch (error) {
  console.error(error.message) // node itself would print a line of Pyodide's code, which has a million characters
  process.exitCode = 1
}
