# /// script
# [tool.marimo.display]
# theme = "system"
# ///
"""The page: controls next to their view. All computation is in the views."""

import marimo

app = marimo.App(width="full", app_title="netsor explore", css_file="_app.css")


@app.cell
def _():
    import marimo as mo

    from netsor.explore import _page as page
    from netsor.explore import _program_view as program
    from netsor.explore import _server as served

    return mo, page, program, served


@app.cell
def _(mo, served):
    target = served.TARGET
    views = ["One layer", "One model"] + (["Your program"] if target else [])
    views += ["Its audit"] if target and target.watched else []
    chosen = mo.ui.radio(views, value="Your program" if target else "One layer", inline=True)
    mo.Html(f'<h1 class="netsor-head">netsor: move a slider, see the law</h1>{chosen}')
    return chosen, target


@app.cell
def _(page):
    layer = page.layer_controls()
    return (layer,)


@app.cell
def _(chosen, layer, mo, page):
    mo.stop(chosen.value != "One layer")
    page.show(page.layer_html(layer), lambda: page.layer_settings(layer.value).view(), "layer")
    return


@app.cell
def _(mo, page):
    model = page.model_controls()
    sharper = mo.ui.run_button(label="Sharper: more draws")
    return model, sharper


@app.cell
def _(chosen, mo, model, page, sharper):
    mo.stop(chosen.value != "One model")
    values, sharp = model.value, sharper.value  # here: the button is up again when the cell has run
    page.show_slowly(
        page.model_html(model, sharper), lambda tell: page.model_settings(values, sharp).views(tell), "model"
    )
    return


@app.cell
def _(mo, page, program, target):
    mo.stop(target is None)
    sliders = program.sliders(target)
    own = page.program_controls(target, sliders)
    return sliders, own


@app.cell
def _(chosen, sliders, mo, own, page, target):
    mo.stop(chosen.value != "Your program")
    page.show(
        page.program_html(target, own),
        lambda: page.program_settings(target, sliders, own.value).view(),
        target.name,
    )
    return


@app.cell
def _(chosen, sliders, mo, own, page, sharper, target):
    mo.stop(chosen.value != "Its audit")
    settings, now = page.program_settings(target, sliders, own.value), sharper.value
    page.show_slowly(
        page.audited_html(target, own, sharper), lambda tell: settings.audited(now, tell), f"{target.name}-audit"
    )
    return


if __name__ == "__main__":
    app.run()
