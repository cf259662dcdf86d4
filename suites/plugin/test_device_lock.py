"""Tests that need the device to themselves wait for each other, and say so."""

from __future__ import annotations

import threading

from pytest_laya.locks import device_lock


def test_the_one_that_waits_says_so_and_then_gets_the_device(tmp_path):
    path, said, order = tmp_path / "lock", [], []
    waiting = threading.Event()

    def tell(line):
        said.append(line)
        waiting.set()

    def second():
        with device_lock(path, tell):
            order.append("second")

    with device_lock(path, said.append):
        thread = threading.Thread(target=second)
        thread.start()
        assert waiting.wait(30)
        order.append("first")
    thread.join(30)
    assert order == ["first", "second"]
    assert said == [f"waiting for the device: another test of this user on this host has it ({path})"]
