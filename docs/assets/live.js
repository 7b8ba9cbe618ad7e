// Runs Python on this page: a button below each block of code, and forms that are answered as they change. Python is
// loaded when it is first asked for. Everything is computed on the reader's machine.
;(() => {
  const script = document.currentScript
  const size = Number(script.dataset.size) // bytes to load before the first answer
  const address = (name) => new URL(name, script.src).href
  const megabytes = (bytes) => `${Math.round(bytes / 1e6)} MB`
  const { made, show, answerTo, values, label } = netsorPage // of explore.js

  // One worker for the page.
  let worker, ready
  let asked = 0
  const pending = new Map()
  const status = made("div", "netsor-live-status")
  status.setAttribute("role", "status")

  function load() {
    if (location.protocol === "file:") {
      throw new Error("Browsers run Python only on pages from a web server, and this page was opened from a file. Start one with make docs-serve. The output shown was stored when this page was made.")
    }
    worker = new Worker(address("live-worker.js"), { type: "module" })
    const bar = Object.assign(made("progress", ""), { max: size, value: 0 })
    const words = made("span", "", `loading Python, ${megabytes(size)} …`)
    status.replaceChildren(words, bar)
    ready = false
    worker.onerror = (event) => fail(event.message || "the worker did not start")
    worker.onmessage = ({ data }) => {
      if (data.loaded !== undefined) {
        bar.value = Math.min(data.loaded, size)
        if (!ready) words.textContent = data.loaded < size ? `loading Python, ${megabytes(data.loaded)} of ${megabytes(size)} …` : "starting Python …"
      } else if (data.failed !== undefined) fail(data.failed)
      else {
        if (!ready) status.replaceChildren()
        ready = true
        const one = pending.get(data.id)
        if (data.done) {
          pending.delete(data.id)
          one.done()
        } else one.emit(data.what, data.content)
      }
    }
    worker.postMessage({ pyodide: address(script.dataset.pyodide), archive: address(script.dataset.archive) })
  }

  function fail(why) {
    stop(new Error(`Python could not be loaded (${why}). Is there a network connection? The output shown was stored when this page was made.`))
  }

  function stop(error = new Error("stopped")) {
    worker?.terminate()
    worker = undefined
    status.replaceChildren()
    for (const one of pending.values()) one.failed(error)
    pending.clear()
    for (const block of blocks) block.ran = false
  }

  // Asks Python, and calls emit(what, content) with each part of its answer.
  function ask(kind, content, emit) {
    if (!worker) load()
    const id = ++asked
    return new Promise((done, failed) => {
      pending.set(id, { emit, done, failed })
      worker.postMessage({ id, kind, content })
    })
  }

  // Blocks of code.
  const blocks = []

  function addBlock(box) {
    const code = box.querySelector("code")
    const kind = box.classList.contains("language-python") ? "python" : "sh"
    if (kind === "sh" && !/^netsor /m.test(code.textContent)) return
    const next = box.nextElementSibling
    const stored = next?.classList.contains("language-text") ? next : undefined
    const button = Object.assign(made("button", "md-button netsor-run", "Run"), { type: "button" })
    button.title = `Run this in your browser; the first time it loads Python, ${megabytes(size)}. Ctrl+Enter in the code does the same.`
    const line = made("div", "netsor-live-line")
    const place = made("div", "netsor-live")
    line.append(button)
    box.after(line, place)
    const block = { kind, code, ran: false, run, line }
    blocks.push(block)

    async function run() {
      const start = performance.now()
      button.textContent = "Stop"
      line.append(status)
      place.replaceChildren()
      const clock = setInterval(() => ready && (status.textContent = `running, ${Math.round((performance.now() - start) / 1000)} s`), 1000)
      try {
        await ask(kind, code.textContent, (what, content) => show(place, what, content))
        block.ran = true
        if (stored) stored.hidden = true
      } catch (error) {
        if (stored) stored.hidden = false
        show(place, "error", error.message)
        throw error
      } finally {
        clearInterval(clock)
        status.replaceChildren()
        button.textContent = "Run"
      }
    }

    async function runWithEarlier() {
      if (button.textContent === "Stop") return stop()
      try {
        for (const one of blocks.slice(0, blocks.indexOf(block))) if (kind === "python" && one.kind === "python" && !one.ran) await one.run()
        await run()
      } catch {} // shown where it happened
    }

    button.onclick = runWithEarlier
    code.contentEditable = "plaintext-only"
    code.spellcheck = false
    code.setAttribute("aria-label", "Code, which can be edited")
    code.oninput = () => (block.ran = false)
    code.onkeydown = (event) => {
      if (event.key === "Enter" && event.ctrlKey) runWithEarlier()
    }
  }

  // Forms: those of kind "layer" are answered as a slider moves, an audit when its button is pressed.
  function addForm(form) {
    const kind = form.dataset.kind
    const place = answerTo(form)
    const button = Object.assign(made("button", "md-button netsor-run"), { type: "submit" })
    button.title = `The first time this loads Python, ${megabytes(size)}.`
    const line = made("div", "netsor-live-line")
    line.append(button)
    form.append(line)
    const name = kind === "layer" ? "Start" : "Audit"
    let busy = false
    let next // the newest values that wait for an answer
    let live = kind !== "layer"
    const enable = (on) => (form.querySelector("fieldset").disabled = !on)
    button.textContent = name
    enable(live)

    async function answer() {
      next = values(form)
      if (busy) return
      busy = true
      try {
        while (next !== undefined) {
          const content = next
          next = undefined
          let shown = false
          const bar = Object.assign(made("progress", ""), { max: 1, value: 0 })
          await ask(kind, content, (what, content) => {
            if (what === "progress") {
              if (!bar.isConnected) status.replaceChildren(made("span", "", "drawing initialisations …"), bar)
              bar.value = Number(content)
            } else {
              if (!shown || what === "html") place.replaceChildren()
              shown = true
              show(place, what, content)
            }
          })
          place.dataset.answers = Number(place.dataset.answers ?? 0) + 1
        }
        live = true
        if (kind === "layer") button.hidden = true
      } catch (error) {
        place.querySelector(".netsor-message")?.remove()
        show(place, "error", error.message)
        place.prepend(place.lastElementChild)
        live = kind !== "layer"
        button.hidden = false
      } finally {
        busy = false
        next = undefined
        button.textContent = name
        status.replaceChildren()
        enable(live)
      }
    }

    form.onsubmit = (event) => {
      event.preventDefault()
      if (busy) return stop()
      line.append(status)
      button.textContent = "Stop"
      answer()
    }
    form.oninput = (event) => {
      label(event)
      if (kind === "layer") answer()
    }
  }

  document.querySelectorAll(".md-typeset :is(.language-python, .language-sh).highlight").forEach(addBlock)
  document.querySelectorAll("form[data-kind]").forEach(addForm)
})()
