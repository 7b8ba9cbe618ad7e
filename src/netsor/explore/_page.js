// The forms of a page, and what Python answers. Static pages ask a worker (docs/assets/live.js); the page of
// `netsor explore` asks its server.
const netsorPage = (() => {
  const made = (tag, name, text = "") => Object.assign(document.createElement(tag), { className: name, textContent: text })

  // Shows a part of an answer.
  function show(place, what, content) {
    if (what === "text") {
      let last = place.lastElementChild
      if (last?.className !== "netsor-live-text") place.append((last = made("pre", "netsor-live-text")))
      last.append(content)
    } else if (what === "image") {
      place.append(Object.assign(made("img", ""), { src: `data:image/png;base64,${content}`, alt: "A figure of this block" }))
    } else if (what === "error") {
      const error = made("pre", "netsor-message", content)
      error.setAttribute("role", "alert")
      place.append(error)
    } else if (what === "html") {
      const part = made("div", "netsor-live-html")
      part.innerHTML = content
      place.append(part)
    }
  }

  // The place of the answer to a form.
  const answerTo = (form) => form.closest(".netsor-two").querySelector(".netsor-view")

  // The value of a slider, and the words for it.
  function chosen(slider) {
    return slider.dataset.choices ? JSON.parse(slider.dataset.choices)[slider.value] : [Number(slider.value), slider.value]
  }

  // The values of a form, as JSON.
  function values(form) {
    const found = {}
    for (const control of form.querySelectorAll("[name]")) {
      if (control.type === "range") found[control.name] = chosen(control)[0]
      else if (control.type === "checkbox") found[control.name] = control.checked
      else found[control.name] = control.tagName === "SELECT" ? JSON.parse(control.value) : control.value
    }
    return JSON.stringify(found)
  }

  // Writes what a control says next to it, and reads a chosen file.
  function label({ target }) {
    if (target.type === "range") target.parentElement.querySelector("output").textContent = chosen(target)[1]
    if (target.type === "file") target.files[0]?.text().then((text) => (target.form.elements[target.dataset.for].value = text))
  }

  // Asks the server, and calls emit(what, content) with each part of its answer.
  async function ask(kind, content, emit, signal) {
    const response = await fetch(`answer/${kind}${location.search}`, { method: "POST", body: content, signal })
    const parts = response.body.pipeThrough(new TextDecoderStream()).getReader()
    let rest = ""
    for (;;) {
      const { done, value } = await parts.read()
      if (done) return
      const lines = (rest + value).split("\n")
      rest = lines.pop()
      for (const line of lines) emit(...JSON.parse(line))
    }
  }

  // Answers a form as it changes; returns the function that asks. Of many positions of a slider the newest is answered:
  // an audit is given up as soon as a control moves, and distances if it moved before they were there.
  function addForm(form) {
    const place = answerTo(form)
    const slow = "slow" in form.dataset
    const bar = Object.assign(made("progress", ""), { max: 1, value: 0 })
    let busy = false
    let shown, next, request

    async function once(content) {
      shown = false
      request = new AbortController()
      try {
        await ask(form.dataset.kind, content, (what, content) => {
          if (what === "progress") {
            if (!bar.isConnected) place.prepend(made("p", "netsor-note", "drawing initialisations …"), bar)
            bar.value = Number(content)
          } else {
            if (!shown || what === "html") place.replaceChildren()
            show(place, what, content)
            shown = true
            if (next !== undefined) request.abort()
          }
        }, request.signal)
        if (bar.isConnected) bar.previousSibling.remove()
        bar.remove()
      } catch (error) {
        if (error.name === "AbortError") return
        place.replaceChildren()
        show(place, "error", "netsor explore has ended: start it again")
      }
    }

    async function answer() {
      next = values(form)
      place.classList.remove("netsor-done")
      if (busy) return slow || shown ? request.abort() : undefined
      busy = true
      while (next !== undefined) {
        const content = next
        next = undefined
        await once(content)
      }
      busy = false
      place.classList.add("netsor-done")
    }

    form.onsubmit = (event) => event.preventDefault()
    form.oninput = (event) => {
      label(event)
      if (event.target.type === "range") answer()
    }
    form.onchange = ({ target }) => target.type === "range" || answer()
    return answer
  }

  // The page of `netsor explore`: shows the chosen view, and asks for it when it is first seen.
  function follow() {
    const sections = [...document.querySelectorAll("section[data-view]")]
    const start = new Map(sections.map((section) => [section, addForm(section.querySelector("form"))]))
    const choices = [...document.querySelectorAll("[name=view]")]
    function choose() {
      const title = choices.find((choice) => choice.checked).value
      for (const section of sections) section.hidden = section.dataset.view !== title
      const section = sections.find((each) => !each.hidden)
      if (!answerTo(section.querySelector("form")).hasChildNodes()) start.get(section)()
    }
    for (const choice of choices) choice.onchange = choose
    choose()
  }

  return { made, show, answerTo, values, label, follow }
})()
