"""``unitball model``: what a released model is and what is guaranteed of it."""

from __future__ import annotations

from typing import Annotated

import typer

from deployments.cli.app import app
from deployments.cli.common import JsonFlag, RootOption, console, print_json, print_root, progress, use_root

models = typer.Typer(help="Registered models.", no_args_is_help=True)
app.add_typer(models, name="model")


@models.command(epilog="Example: unitball model show digits.noisy-gd")
def show(
    model: Annotated[str, typer.Argument(help="NAME, NAME@ALIAS or NAME/VERSION; a name alone is its newest version.")],
    root: RootOption = None,
    json: JsonFlag = False,
) -> None:
    """Show the model card: trained on what, guaranteed, spent, how good, what is not covered, how to reproduce."""
    from rich.markdown import Markdown

    from tasks.runtime.settings import current_root
    from tasks.tracking.models import find_model

    use_root(root)
    found = find_model(current_root(), model)
    if json:
        print_json({"model": found.name, "version": found.version, "card": found.card})
        return
    screen = console()
    screen.print(f"{found.name} version {found.version}", style="bold")
    text = found.card or "This version was logged without a model card."
    screen.print(Markdown(text) if screen.is_terminal else text, highlight=False, markup=False, soft_wrap=True)
    print_root()


@models.command(epilog="Example: unitball model promote digits.noisy-gd/3 --alias champion")
def promote(
    model: Annotated[str, typer.Argument(help="NAME/VERSION or NAME@ALIAS; a name alone is its newest version.")],
    alias: Annotated[str, typer.Option(help="The alias that the version gets.")] = "champion",
    root: RootOption = None,
    json: JsonFlag = False,
) -> None:
    """Give a version an alias. The champion's goes to what is proved, within budget, audited and better."""
    from tasks.runtime.settings import current_root
    from tasks.tracking.models import find_model
    from tasks.tracking.promotion import promote as set_alias

    use_root(root)
    found = find_model(current_root(), model)
    set_alias(current_root(), found.name, found.version, alias)
    if json:
        print_json({"model": found.name, "version": found.version, "alias": alias})
        return
    console().print(f"{found.name} version {found.version} is now {found.name}@{alias}", highlight=False, markup=False)
    print_root()


@models.command(epilog="Example: unitball model compare clinic.noisy-gd/3 --epsilon 0.1 --promote")
def compare(
    model: Annotated[str, typer.Argument(help="NAME/VERSION or NAME@ALIAS; a name alone is its newest version.")],
    epsilon: Annotated[
        float | None, typer.Option(help="Charge this to private held-out rows; not needed on public ones.")
    ] = None,
    promote: Annotated[bool, typer.Option("--promote", help="Make it champion where it is better.")] = False,
    root: RootOption = None,
    json: JsonFlag = False,
) -> None:
    """Compare a version with the champion of its name on the same held-out rows."""
    from tasks.runtime.engine import prepare_engine, quick_flows
    from tasks.runtime.settings import current_root
    from tasks.tracking.comparison import ComparisonRequest, open_contest

    use_root(root)
    request = ComparisonRequest(model=model, epsilon=epsilon, promote=promote)
    # What cannot be compared is said before an engine is started.
    open_contest(current_root(), model)
    with progress(f"compare {model}"):
        prepare_engine(current_root())
        from flows.champion import champion_comparison

        with quick_flows():
            compared = champion_comparison(request)
    if json:
        print_json({**compared.model_dump(mode="json"), "better": compared.better})
        return
    console().print(compared.statement, highlight=False, markup=False, soft_wrap=True)
    print_root()


@models.command(epilog="Example: unitball model rollback clinic.noisy-gd")
def rollback(
    name: Annotated[str, typer.Argument(help="A registered model.")],
    root: RootOption = None,
    json: JsonFlag = False,
) -> None:
    """Give the champion's alias back to the version that had it before."""
    from tasks.runtime.settings import current_root
    from tasks.tracking.promotion import roll_back

    use_root(root)
    version = roll_back(current_root(), name)
    if json:
        print_json({"model": name, "version": version, "alias": "champion"})
        return
    console().print(f"{name} version {version} is {name}@champion again", highlight=False, markup=False)
    print_root()


@models.command(epilog='Example: unitball model withdraw-audits noisy-gd --reason "seed 7 of a broken build"')
def withdraw_audits(
    algorithm: Annotated[str, typer.Argument(help="A registered system.")],
    reason: Annotated[str, typer.Option(help="Why the finding was an error; it stays on record.")],
    root: RootOption = None,
    json: JsonFlag = False,
) -> None:
    """Take back what audits have refuted of an algorithm; its models may be champion after another audit."""
    from tasks.runtime.settings import current_root
    from tasks.tracking.promotion import withdraw_audits as withdraw

    use_root(root)
    freed = withdraw(current_root(), algorithm, reason)
    if json:
        print_json({"algorithm": algorithm, "reason": reason, "versions": freed})
        return
    console().print(f"withdrawn for {algorithm}: {', '.join(freed) or 'no version'}", highlight=False, markup=False)
    print_root()
