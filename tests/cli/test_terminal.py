"""Tables and text on terminals and in pipes."""

import io
import os
import sys

import pytest

from keras_vit.cli import terminal


class Screen(io.StringIO):
    def isatty(self):
        return True


def test_a_table_on_a_terminal_folds_and_loses_nothing(monkeypatch):
    screen = Screen()
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setenv("COLUMNS", "20")
    monkeypatch.setenv("TERM", "xterm")
    address = "http://a/" + "0123456789" * 6
    terminal.write_table(("model", "address"), [("m", address)])
    shown = screen.getvalue()
    assert "─" in shown
    assert "…" not in shown
    assert address in "".join(line.split(" ")[-1] for line in shown.splitlines())


def test_a_table_in_a_pipe(capsys):
    rows = [("[red]a[/red]", None, 1234567), ("b", 2.25, 8)]
    terminal.write_table(("name", "share", "count"), rows)
    assert capsys.readouterr().out == (
        "name          share      count\n"
        "[red]a[/red]      -  1,234,567\n"
        "b               2.2          8\n"
    )


def test_names_that_are_not_text(capsys):
    terminal.write(os.fsdecode(b"photo\xff.png\n"))
    assert capsys.readouterr().out == "photo\\udcff.png\n"


def test_a_reader_that_leaves_is_no_error(monkeypatch):
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w") as pipe:
        monkeypatch.setattr(sys, "stdout", pipe)
        terminal.write("first\n")
        terminal.write("second\n")


def test_quiet_drops_what_libraries_write(capfd, monkeypatch):
    monkeypatch.delenv("KERAS_VIT_DEBUG", raising=False)
    with pytest.raises(ValueError, match="wrong"), terminal.quiet():
        os.write(2, b"noise\n")
        raise ValueError("wrong")
    os.write(2, b"signal\n")
    assert capfd.readouterr().err == "signal\n"
    monkeypatch.setenv("KERAS_VIT_DEBUG", "1")
    with terminal.quiet():
        os.write(2, b"noise\n")
    assert capfd.readouterr().err == "noise\n"


def test_the_progress_bar_is_for_terminals(monkeypatch, capsys):
    with terminal.progress_bar("pictures", 2) as advance:
        advance()
    assert capsys.readouterr() == ("", "")
    screen = Screen()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    with terminal.progress_bar("pictures", 2) as advance:
        advance()
    assert "pictures" in screen.getvalue()
