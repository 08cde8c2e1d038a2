"""Messages with open files: whole, in order, each with its own files; and what is refused."""

from __future__ import annotations

import array
import fcntl
import json
import os
import random
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import tracemalloc
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from manege.runtime import channel
from manege.runtime.channel import CAP, Channel, Garbled, Gone, Received

LONG_S = 30.0


def tiny_pair() -> tuple[Channel, Channel]:
    one, other = socket.socketpair()
    for sock in (one, other):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
    return Channel(one), Channel(other)


def raw_pair() -> tuple[socket.socket, Channel]:
    one, other = socket.socketpair()
    return one, Channel(other)


def memory_file(text: str) -> int:
    file = os.memfd_create("test")
    os.write(file, text.encode())
    return file


def told_by(files: tuple[int, ...]) -> list[str]:
    """What the files hold; they are closed."""
    texts = [os.pread(file, 100, 0).decode() for file in files]
    for file in files:
        os.close(file)
    return texts


def frame(body: bytes, *, length: int | None = None, files: int = 0) -> bytes:
    return struct.pack(">IB", len(body) if length is None else length, files) + body


def send_raw(sock: socket.socket, data: bytes, num_files: int) -> None:
    files = [memory_file("x") for _ in range(num_files)]
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", files))] if files else []
    assert sock.sendmsg([data], rights) == len(data)
    for file in files:
        os.close(file)


def receive_all(reader: Channel, count: int) -> list[Received]:
    found: list[Received] = []
    while len(found) < count:
        assert reader.wait(LONG_S)
        found += reader.receive()
    return found


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    # Lone surrogates as well: so Python spells a file name that is not UTF-8.
    | st.text(st.characters(exclude_categories=[])),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@settings(deadline=None, max_examples=40)
@given(st.lists(st.dictionaries(st.text(), values, max_size=4), max_size=8))
def test_messages_come_out_as_they_went_in_and_in_order(messages):
    one, other = Channel.pair()
    for message in messages:
        one.send(message)
    assert [received.message for received in other.receive()] == messages
    assert other.receive() == []
    one.close()
    other.close()


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.tuples(st.integers(0, 20_000), st.integers(0, 4)), min_size=1, max_size=12),
    st.sampled_from([1, 3, 5, 7, 1000, 65536]),
    st.booleans(),
)
def test_each_message_has_its_own_files_however_the_stream_is_cut(sent, read_bytes, tiny):
    if read_bytes < 1000:
        sent = [(size // 50, num_files) for size, num_files in sent]
    one, other = tiny_pair() if tiny else Channel.pair()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(channel, "_READ_BYTES", read_bytes)
        for number, (size, num_files) in enumerate(sent):
            files = [memory_file(f"{number}.{which}") for which in range(num_files)]
            one.send({"number": number, "padding": "x" * size}, files)
            for file in files:
                os.close(file)
        found: list[Received] = []
        while len(found) < len(sent):
            one.flush()
            found += other.receive()
    assert not one.wants_write
    for number, (size, num_files) in enumerate(sent):
        message, files = found[number]
        assert message == {"number": number, "padding": "x" * size}
        assert told_by(files) == [f"{number}.{which}" for which in range(num_files)]
    one.close()
    other.close()


def test_files_of_messages_that_arrive_together_are_not_mixed_up():
    one, other = Channel.pair()
    counts = [0, 2, 0, 0, 1, 4, 0, 1]
    for number, count in enumerate(counts):
        files = [memory_file(f"{number}.{which}") for which in range(count)]
        one.send({"number": number}, files)
        for file in files:
            os.close(file)
    found = other.receive()
    assert [len(received.files) for received in found] == counts
    for received in found:
        for file in received.files:
            assert fcntl.fcntl(file, fcntl.F_GETFD) & fcntl.FD_CLOEXEC
        number, count = received.message["number"], len(received.files)
        assert told_by(received.files) == [f"{number}.{which}" for which in range(count)]
    one.close()
    other.close()


def test_threads_that_send_at_once_do_not_cut_into_each_others_messages():
    one, other = tiny_pair()
    threads, each = 4, 60

    def work(which: int) -> None:
        rng = random.Random(which)
        for number in range(each):
            letter = chr(ord("a") + which)
            files = [memory_file(f"{which}.{number}")] if rng.random() < 0.3 else []
            one.send({"from": which, "n": number, "x": letter * rng.randrange(9000)}, files)
            for file in files:
                os.close(file)
            if rng.random() < 0.2:
                one.flush(0.001)

    senders = [threading.Thread(target=work, args=(which,)) for which in range(threads)]
    for sender in senders:
        sender.start()
    found: list[Received] = []
    while len(found) < threads * each:
        one.flush()
        if other.wait(0.01):
            found += other.receive()
    for sender in senders:
        sender.join()
    for which in range(threads):
        mine = [received for received in found if received.message["from"] == which]
        assert [received.message["n"] for received in mine] == list(range(each))
        for message, files in mine:
            assert set(message["x"]) <= {chr(ord("a") + which)}
            assert told_by(files) in ([], [f"{which}.{message['n']}"])
    assert any(received.files for received in found)
    one.close()
    other.close()


def test_numbers_that_are_not_finite_become_null_and_numpys_become_pythons():
    one, other = Channel.pair()
    one.send({"a": float("nan"), "b": [float("inf"), 1.5], "c": np.float32(0.5), "d": np.int64(7)})
    [(message, files)] = other.receive()
    assert message == {"a": None, "b": [None, 1.5], "c": 0.5, "d": 7}
    assert files == ()
    one.close()
    other.close()


def test_what_the_sender_may_not_send_is_refused_and_harms_nothing():
    one, other = Channel.pair()
    with pytest.raises(ValueError, match="1048577 bytes"):
        one.send({"x": "x" * (CAP + 1 - len('{"x":""}'))})
    with pytest.raises(ValueError, match="5 files"):
        one.send({}, [0] * 5)
    with pytest.raises(TypeError):
        one.send({"x": object()})
    with pytest.raises(OSError, match="Bad file descriptor"):
        one.send({}, [0, 9999])
    one.send({"x": "x" * (CAP - len('{"x":""}'))})
    [(message, _)] = receive_pumped(one, other)
    assert len(message["x"]) == CAP - len('{"x":""}')
    one.close()
    other.close()


def receive_pumped(one: Channel, other: Channel) -> list[Received]:
    found: list[Received] = []
    while not found:
        one.flush()
        found = other.receive()
    return found


def test_a_sender_does_not_wait_for_a_reader_that_does_not_read():
    one, other = Channel.pair()
    file = memory_file("late")
    for number in range(20):
        one.send({"n": number, "x": "x" * 50_000}, [file] if number == 19 else [])
    os.close(file)
    assert one.wants_write
    assert one.flush(0.05) is False
    found = other.receive()
    assert 0 < len(found) < 20
    while len(found) < 20:
        one.flush()
        found += other.receive()
    assert one.flush() is True
    assert not one.wants_write
    assert [received.message["n"] for received in found] == list(range(20))
    assert told_by(found[19].files) == ["late"]
    one.close()
    other.close()


def test_flush_waits_for_a_slow_reader():
    one, other = Channel.pair()
    for number in range(20):
        one.send({"n": number, "x": "x" * 50_000})
    found: list[Received] = []
    reader = threading.Thread(target=lambda: found.extend(receive_all(other, 20)))
    reader.start()
    assert one.flush(LONG_S) is True
    reader.join()
    assert [received.message["n"] for received in found] == list(range(20))
    one.close()
    other.close()


def test_a_reader_that_never_reads_is_as_good_as_gone(monkeypatch):
    monkeypatch.setattr(channel, "_QUEUE_CAP", 1 << 20)
    one, other = Channel.pair()
    file = memory_file("never sent")
    sent = 0

    def fill() -> None:
        nonlocal sent
        for _ in range(100):
            one.send({"n": sent, "x": "x" * 50_000}, [file])
            sent += 1

    with pytest.raises(Gone, match="unread"):
        fill()
    os.close(file)
    assert sent >= (1 << 20) // 50_100
    # A smaller message that would still fit must not follow a gap.
    with pytest.raises(Gone):
        one.send({})
    with pytest.raises(Gone):
        one.flush()
    assert not one.wants_write
    assert one.wait(0)
    with pytest.raises(Gone):
        one.receive()
    whole = [received for received in other.receive() if told_by(received.files)]
    assert [received.message["n"] for received in whole] == list(range(len(whole)))
    with pytest.raises(Gone, match="middle of a message"):
        other.receive()
    one.close()
    other.close()


def test_a_reader_that_keeps_up_may_be_sent_any_number_of_bytes(monkeypatch):
    monkeypatch.setattr(channel, "_QUEUE_CAP", 1 << 20)
    one, other = Channel.pair()
    for number in range(60):
        one.send({"n": number, "x": "x" * 50_000})
        assert [received.message["n"] for received in receive_pumped(one, other)] == [number]
    one.close()
    other.close()


def test_what_came_before_the_end_is_delivered_before_it():
    one, other = Channel.pair()
    one.send({"n": 1})
    one.send({"n": 2}, [0])
    one.close()
    assert other.wait(0)
    found = other.receive()
    assert [received.message["n"] for received in found] == [1, 2]
    os.close(found[1].files[0])
    for _ in range(2):
        assert other.wait(None)
        with pytest.raises(Gone):
            other.receive()
    with pytest.raises(Gone):
        other.send({})
    other.close()


def test_an_end_with_unread_messages_is_an_end_for_the_other_side_too():
    one, other = Channel.pair()
    other.send({"n": 1})
    one.send({"unread": True})
    other.close()
    # The kernel says "connection reset" here, not "end of stream".
    assert [received.message for received in one.receive()] == [{"n": 1}]
    with pytest.raises(Gone):
        one.receive()
    one.close()

    one, other = Channel.pair()
    one.send({"unread": True})
    other.close()
    for _ in range(2):
        with pytest.raises(Gone):
            one.send({})
    one.close()


def test_an_end_in_the_middle_of_a_message_is_an_end():
    sock, reader = raw_pair()
    send_raw(sock, frame(b'{"n":1}') + frame(b'{"n":2}', files=1)[:-1], 0)
    sock.close()
    assert reader.receive() == [Received({"n": 1}, ())]
    with pytest.raises(Garbled, match="0 files with a message that states 1"):
        reader.receive()
    reader.close()

    sock, reader = raw_pair()
    send_raw(sock, frame(b'{"n":2}', files=1)[:-1], 1)
    assert reader.receive() == []
    sock.close()
    with pytest.raises(Gone, match="middle of a message"):
        reader.receive()
    reader.close()


GARBAGE: dict[str, tuple[str, Callable[[socket.socket], object]]] = {
    "not JSON": ("cannot be read", lambda s: s.send(frame(b"{"))),
    "not UTF-8": ("cannot be read", lambda s: s.send(frame(b'{"\xff":1}'))),
    "NaN": ("NaN", lambda s: s.send(frame(b'{"a":NaN}'))),
    "a list": ("list", lambda s: s.send(frame(b"[1]"))),
    "nothing": ("cannot be read", lambda s: s.send(frame(b""))),
    "nested": ("deep", lambda s: s.send(frame(b'{"a":' + b"[" * 100_000))),
    "long": ("4294967295 bytes", lambda s: s.send(frame(b"{}", length=0xFFFFFFFF))),
    "one too long": ("1048577 bytes", lambda s: s.send(frame(b"{}", length=CAP + 1))),
    "no file": ("0 files", lambda s: s.send(frame(b"{}", files=1))),
    "too few files": ("1 files", lambda s: send_raw(s, frame(b"{}", files=2), 1)),
    "too many files": ("2 files", lambda s: send_raw(s, frame(b"{}", files=1), 2)),
    "far too many": ("lost", lambda s: send_raw(s, frame(b"{}", files=9), 9)),
    "not stated": ("belong to no", lambda s: send_raw(s, frame(b"{}"), 1)),
    "with a later byte": (
        "belong to no",
        lambda s: (s.send(frame(b"{}")[:-1]), send_raw(s, b"}", 1)),
    ),
    "in a body that goes on": (
        "belong to no",
        lambda s: (send_raw(s, frame(b'{"a":1}', files=1)[:-3], 1), send_raw(s, b"1", 1)),
    ),
    "bad JSON with files": ("cannot be read", lambda s: send_raw(s, frame(b"?", files=4), 4)),
}


@pytest.mark.parametrize("before", [0, 2])
@pytest.mark.parametrize("kind", GARBAGE)
def test_garbage_is_refused_after_what_came_before_it(kind, before):
    words, send = GARBAGE[kind]
    sock, reader = raw_pair()
    for number in range(before):
        send_raw(sock, frame(json.dumps({"n": number}).encode(), files=1), 1)
    send(sock)
    sock.send(frame(b'{"after": "it"}'))
    found = reader.receive() if before else []
    assert [received.message["n"] for received in found[:before]] == list(range(before))
    # A file that belongs to nobody is noticed with the message it might have been for.
    assert len(found) == before or words == "belong to no"
    for received in found:
        for file in received.files:
            os.close(file)
    # Whoever polls the descriptor must learn of it, although nothing more comes.
    for _ in range(2):
        assert select.select([reader.fileno()], [], [], 0)[0]
        assert reader.wait(0)
        with pytest.raises(Garbled, match=words):
            raise_end(reader)
    with pytest.raises(Gone):
        reader.send({})
    reader.close()
    sock.close()


def raise_end(reader: Channel) -> None:
    """Messages that are whole and stand before the end are passed over."""
    for _ in range(5):
        assert reader.wait(1)
        assert all(received.files == () for received in reader.receive())


def test_files_that_do_not_come_with_the_first_byte_are_refused():
    sock, reader = raw_pair()
    whole = frame(b"{}", files=1)
    send_raw(sock, whole[:1], 0)
    assert reader.receive() == []
    send_raw(sock, whole[1:], 1)
    with pytest.raises(Garbled, match="0 files with a message that states 1"):
        reader.receive()
    sock.close()
    reader.close()


def test_the_one_who_sends_garbage_is_cut_off():
    sock, reader = raw_pair()
    sock.send(frame(b"?"))
    with pytest.raises(Garbled):
        reader.receive()
    assert sock.recv(1) == b""
    with pytest.raises(BrokenPipeError):
        sock.send(b"more")
    sock.close()
    reader.close()


def test_a_length_that_is_refused_or_does_not_come_takes_no_memory():
    for length, end in ((0xFFFFFFFF, Garbled), (CAP, Gone)):
        sock, reader = raw_pair()
        sock.send(frame(b"{}", length=length))
        sock.close()
        tracemalloc.start()
        with pytest.raises(end):
            reader.receive()
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        # One read's buffer, not the length.
        assert peak < CAP / 4
        reader.close()


def test_files_that_did_not_reach_anybody_are_closed_with_the_channel():
    one, other = tiny_pair()
    file = memory_file("x")
    for _ in range(5):
        one.send({"x": "x" * 10_000}, [file] * 4)
    assert one.wants_write
    assert other.receive() == []  # The first has come in part, with its files.
    assert len(os.listdir("/proc/self/fd")) > 8  # noqa: PTH208
    os.close(file)
    one.close()
    other.close()


def test_wait_tells_whether_there_is_something_to_receive():
    one, other = Channel.pair()
    assert other.wait(0) is False
    assert other.wait(0.02) is False
    one.send({})
    assert other.wait(0) is True
    assert other.wait(None) is True
    assert len(other.receive()) == 1
    assert other.wait(0) is False
    later = threading.Timer(0.05, one.send, [{"n": 1}])
    later.start()
    assert other.wait(LONG_S) is True
    later.join()
    one.close()
    assert other.wait(None) is True
    other.close()


def test_wait_sends_meanwhile_what_is_in_the_queue():
    one, other = Channel.pair()
    for number in range(30):
        one.send({"n": number, "x": "x" * 50_000})
    assert one.wants_write

    def answer() -> None:
        receive_all(other, 30)
        other.send({"is": "answer"})

    reader = threading.Thread(target=answer)
    reader.start()
    assert one.wait(LONG_S) is True
    assert one.receive() == [Received({"is": "answer"}, ())]
    reader.join()
    one.close()
    other.close()


def test_wait_ends_when_the_reader_goes_with_bytes_still_in_the_queue():
    one, other = Channel.pair()
    for _ in range(30):
        one.send({"x": "x" * 50_000})
    other.close()
    assert one.wait(LONG_S) is True
    with pytest.raises(Gone):
        one.receive()
    one.close()


def test_a_flood_does_not_keep_the_reader_for_ever(monkeypatch):
    monkeypatch.setattr(channel, "_READS", 3)
    monkeypatch.setattr(channel, "_READ_BYTES", 64)
    one, other = Channel.pair()
    for number in range(100):
        one.send({"n": number})
    found = other.receive()
    assert 0 < len(found) < 50
    found += receive_all(other, 100 - len(found))
    assert [received.message["n"] for received in found] == list(range(100))
    one.close()
    other.close()


def test_a_closed_channel_says_so_and_closes_again():
    one, other = Channel.pair()
    for _ in range(2):
        one.close()
        assert one.fileno() == -1
        assert one.wait(None) is True
        for work in (one.receive, one.flush, lambda: one.send({})):
            with pytest.raises(Gone, match="this side"):
                work()
    with pytest.raises(Gone):
        other.receive()
    other.close()


def test_a_copy_that_is_closed_does_not_take_the_channel_away():
    one, other = Channel.pair()
    copy = Channel(socket.socket(fileno=os.dup(one.fileno())))
    copy.close()
    one.send({"still": "there"})
    assert len(other.receive()) == 1
    one.close()
    other.close()


def test_another_process_answers_without_torch_and_its_death_is_noticed():
    program = (
        "import os, signal, socket, sys\n"
        "from manege.runtime.channel import Channel\n"
        "signal.signal(signal.SIGPIPE, signal.SIG_DFL)\n"
        "channel = Channel(socket.socket(fileno=int(sys.argv[1])))\n"
        "while True:\n"
        "    channel.wait(None)\n"
        "    for message, files in channel.receive():\n"
        "        told = os.pread(files[0], 100, 0).decode()\n"
        "        answer = {'told': told, 'torch': 'torch' in sys.modules}\n"
        "        channel.send(answer, files)\n"
    )
    one, other = Channel.pair()
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(other.fileno())], pass_fds=[other.fileno()]
    )
    other.close()
    with process:
        try:
            file = memory_file("over there")
            one.send({"is": "question"}, [file])
            os.close(file)
            [(message, files)] = receive_all(one, 1)
            assert message == {"told": "over there", "torch": False}
            assert told_by(files) == ["over there"]
            process.send_signal(signal.SIGKILL)
            assert one.wait(LONG_S)
            with pytest.raises(Gone):
                one.receive()
        finally:
            process.kill()
    one.close()


def test_a_sender_that_does_not_ignore_sigpipe_lives():
    one, other = Channel.pair()
    other.close()
    before = signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    try:
        with pytest.raises(Gone):
            one.send({})
    finally:
        signal.signal(signal.SIGPIPE, before)
    one.close()
