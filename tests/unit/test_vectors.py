"""Files of word vectors, and what is said of those that are wrong."""
import gzip

import numpy as np
import pytest

from rpr.problems import vectors
from rpr.utils.errors import UserError

ROWS = [("der", "0.5 -1 2e-3"), (",", "1 2 3"), ("ärger", "0 0 1")]
TEXT = "3 3\n" + "".join(f"{word} {values} \n" for word, values in ROWS)      # fastText ends so


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_words_and_numbers_are_read_in_order(tmp_path, suffix):
    path = str(tmp_path / f"de.vec{suffix}")
    with (gzip.open if suffix else open)(path, "wt", encoding="utf-8") as out:
        out.write(TEXT)
    assert vectors.dimension(path) == 3
    assert [(word, values) for _, word, values in vectors.read(path)] == ROWS
    assert [word for _, word, _ in vectors.read(path, most=2)] == ["der", ","]
    found = vectors.table(path, ["ärger", "fehlt", "der"])
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, np.float32([[0, 0, 1], [np.nan] * 3, [0.5, -1, 2e-3]]))


def test_what_is_written_is_read_again(tmp_path):
    path = str(tmp_path / "x.vec")
    vectors.write(path, 3, ROWS)
    assert [row[1:] for row in vectors.read(path)] == ROWS


@pytest.mark.parametrize("content, said", [
    (b"der 1 2 3\n", "line 1 is not '<number of vectors> <dimension>': 'der 1 2 3'"),
    (b"", "line 1 is not"),
    (b"2 999999999\nder 1 2 3\n", "line 1 is not"),
    (b"9" * 5000 + b" 3\nder 1 2 3\n", "line 1 is not"),
    (b"2 3\nder 1 2 3\n" + b"x" * 2**21, "line 3 is longer than 1,048,576 bytes"),
    (b"2 3\nder 1 2 3\ndie 1 2\n", "line 3 has 2 numbers after its word, the first line says 3"),
    (b"2 3\nder\ndie 1 2 3\n", "line 2 has 0 numbers"),
    (b"2 3\nder 1 2 3\nd\xff 1 2 3\n", "line 3 is not UTF-8"),
    (b"2 3\nder 1 2 3\ndie 1 x 3\n", "line 3: not numbers after 'die'"),
    (b"2 3\nder 1 2 3\ndie 1 nan 3\n", "line 3: the vector of 'die' is not finite"),
    (b"9 3\nder 1 2 3\n", "it ends after 1 vectors, its first line promises 9"),
])
def test_a_wrong_file_is_refused_with_its_line(tmp_path, content, said):
    path = tmp_path / "x.vec"
    path.write_bytes(content)
    with pytest.raises(UserError, match=said) as error:
        vectors.table(str(path), ["die", "fehlt"])
    assert str(error.value).startswith(f"{path}: ")


def test_a_file_that_is_cut_off_or_absent_is_refused(tmp_path):
    path = tmp_path / "x.vec.gz"
    whole = gzip.compress(("2000 3\n" + "".join(f"w{i} {i} {i * i} 1\n" for i in range(2000)))
                          .encode())
    path.write_bytes(whole[:len(whole) // 2])
    with pytest.raises(UserError, match=r"x.vec.gz: damaged after line \d+"):
        list(vectors.read(str(path)))
    path.write_bytes(b"no gzip")
    with pytest.raises(UserError, match="x.vec.gz: damaged"):
        vectors.dimension(str(path))
    with pytest.raises(UserError, match="absent.vec: No such file"):
        vectors.dimension(str(tmp_path / "absent.vec"))
