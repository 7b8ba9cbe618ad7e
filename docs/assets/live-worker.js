// Python in a worker, so that the page stays responsive. Messages in: first {pyodide, archive}, then {id, kind, content}.
// Messages out: {loaded} bytes, {failed} why Python cannot be had, {id, what, content} of `answer`, and {id, done}.

const PLOTS = /matplotlib|plot|save|--out/ // code that needs matplotlib
const CELLS = "netsor._browser_cells"
const FORMS = "netsor.explore._forms"
const MODULES = { python: CELLS, sh: CELLS, layer: FORMS, model: FORMS }
let python

// Pyodide fetches its files itself; here they are counted as they come.
const fetched = self.fetch
let loaded = 0
self.fetch = async (...request) => {
  const response = await fetched(...request)
  if (!response.ok || !response.body) return response
  const count = new TransformStream({
    transform(chunk, out) {
      loaded += chunk.length
      postMessage({ loaded })
      out.enqueue(chunk)
    },
  })
  return new Response(response.body.pipeThrough(count), { headers: response.headers, status: response.status })
}

async function start({ pyodide, archive }) {
  const files = fetch(archive).then((response) => {
    if (!response.ok) throw new Error(`${archive}: ${response.status}`)
    return response.arrayBuffer()
  })
  const { loadPyodide } = await import(`${pyodide}pyodide.mjs`)
  python = await loadPyodide({ indexURL: pyodide, packages: ["numpy", "scipy"], env: { HOME: "/home/pyodide", MPLBACKEND: "agg" } })
  python.unpackArchive(await files, "zip", { extractDir: "/netsor" })
  python.runPython("import sys; sys.path.insert(0, '/netsor')")
}

async function reply({ id, kind, content }) {
  if (MODULES[kind] === CELLS && PLOTS.test(content)) await python.loadPackage("matplotlib", { messageCallback() {} })
  python.pyimport(MODULES[kind]).answer(kind, content, (what, content) => postMessage({ id, what, content }))
  postMessage({ id, done: true })
}

let last // each message waits for the one before it
self.onmessage = ({ data }) => {
  last = data.pyodide ? start(data) : last.then(() => reply(data))
  last.catch((error) => postMessage({ failed: error.message }))
}
