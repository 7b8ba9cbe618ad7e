// Sorts the tables of the atlas: select the head of a column; a second time reverses it.
document.addEventListener("DOMContentLoaded", () => {
  for (const table of document.querySelectorAll(".sortable table")) {
    const heads = [...table.tHead.rows[0].cells]
    heads.forEach((head, column) => {
      const button = document.createElement("button")
      button.type = "button"
      button.append(...head.childNodes)
      head.append(button)
      button.addEventListener("click", () => {
        const descending = head.getAttribute("aria-sort") === "ascending"
        heads.forEach((other) => other.removeAttribute("aria-sort"))
        head.setAttribute("aria-sort", descending ? "descending" : "ascending")
        sortBy(table.tBodies[0], column, descending ? -1 : 1)
      })
    })
  }

  // Numbers by their size, words by the alphabet; dashes, which are no values, at the end.
  function sortBy(body, column, sign) {
    const key = (row) => row.cells[column].textContent.trim()
    const number = (text) => Number(text.replaceAll(",", ""))
    const compare = (a, b) => {
      if (a === "–" || b === "–") return (a === "–") - (b === "–")
      const both = [number(a), number(b)]
      return sign * (both.some(Number.isNaN) ? a.localeCompare(b) : both[0] - both[1])
    }
    body.append(...[...body.rows].sort((one, other) => compare(key(one), key(other))))
  }
})
