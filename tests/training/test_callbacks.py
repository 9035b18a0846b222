import pytest

from keras_vit.training.callbacks import History, StopAtNaN, TimeLeft, duration, read_history


def test_history_drops_what_is_done_again(tmp_path):
    path = tmp_path / "history.csv"
    first = History(path)
    for epoch in range(3):
        first.on_epoch_begin(epoch)
        first.on_epoch_end(epoch, {"loss": 1.0 - 0.1 * epoch})
    again = History(path, epoch=2)
    again.on_epoch_begin(2)
    again.on_epoch_end(2, {"loss": 0.5})
    rows = read_history(path)
    assert [(row["epoch"], row["loss"]) for row in rows] == [(1, 1.0), (2, 0.9), (3, 0.5)]
    assert [path.name for path in tmp_path.iterdir()] == ["history.csv"]


def test_nan_is_an_error_that_names_the_batch():
    callback = StopAtNaN()
    callback.on_epoch_begin(1)
    callback.on_train_batch_end(0, {"loss": 1.0})
    with pytest.raises(ValueError, match="loss=nan in epoch 2, batch 4. Lower the learning rate"):
        callback.on_train_batch_end(3, {"loss": float("nan")})


def test_time_left_is_told_once():
    lines = []
    callback = TimeLeft(30, lines.append)
    for batch in range(30):
        callback.on_train_batch_end(batch)
    (line,) = lines
    assert "ms a step: about 0 s left" in line


def test_duration():
    assert [duration(s) for s in (40, 720, 12_600)] == ["40 s", "12 min", "3.5 h"]
