import re
from pathlib import Path

import pytest
from tests.scripts.runner import NOTHING, Block, parse, play, scripts, story
from tests.scripts.stage import Stage

SCRIPTS = scripts()


@pytest.mark.parametrize("path", SCRIPTS, ids=[path.stem for path in SCRIPTS])
def test_what_a_script_tells_is_what_happens(path: Path, request: pytest.FixtureRequest) -> None:
    told = path.read_text()
    happened = play(told, Stage())
    if request.config.getoption("--rewrite"):
        path.write_text(happened)
    else:
        assert happened.splitlines() == told.splitlines()


@pytest.mark.parametrize("path", SCRIPTS, ids=[path.stem for path in SCRIPTS])
def test_a_script_opens_with_its_story_and_names_its_paper(path: Path) -> None:
    opening = " ".join(story(parse(path.read_text())))
    assert len(opening.split()) >= 30, opening
    assert re.search(r"\(seed [123]\b", opening), opening


def test_a_script_that_tells_something_else_is_corrected() -> None:
    told = "# One node.\n\ngroup n1\nlog n1\n----\nn1 leader t1 [0,99]\n\nelect n1\n----\n"
    happened = play(told, Stage())
    assert "[0,99]" not in happened
    assert "n1 is leader in term 1" in happened
    assert play(happened, Stage()) == happened


def test_a_command_that_causes_nothing_says_so() -> None:
    assert play("group n1\n----\n", Stage()).splitlines()[-1] == NOTHING


def test_a_mistake_in_a_script_names_its_line() -> None:
    with pytest.raises(ValueError, match="no command dance") as caught:
        play("# A story.\n\ngroup n1\ndance n1\n----\n", Stage())
    assert caught.value.__notes__ == ["in line 3: dance n1"]


def test_commands_without_a_line_of_dashes_are_refused() -> None:
    with pytest.raises(ValueError, match="line 2: commands end"):
        parse("group n1\n\nlog n1\n----\n")


def test_a_script_is_taken_apart_into_lines_and_blocks() -> None:
    parts = parse("# Once.\n\nfirst\nsecond\n----\nthird\n\n# Then.\n")
    assert parts == ["# Once.", "", Block(3, ("first", "second"), ("third",)), "", "# Then."]
