"""LibreOffice Help as text for a language model: python docs/examples/help_documents.py FOLDER

FOLDER/train.txt and dev.txt have lines of 130 characters: the sentences of the corpus, which are in
no order, one after the other. FOLDER/test.txt has the help pages of the test set, in lines of up to
2,047 characters.
"""
import gzip
import itertools
import pathlib
import sys

TRAINED, TESTED = 130, 2047
CORPUS = pathlib.Path(__file__).parents[2] / "problems" / "libreoffice_help"


def lines(name: str) -> list[str]:
    """The lines of a file of the corpus, in ASCII, so that a character is a byte."""
    with gzip.open(CORPUS / name, "rt", encoding="utf-8") as text:
        return [line.strip().encode("ascii", "replace").decode() for line in text]


def pieces(text: str, length: int) -> list[str]:
    """The text in pieces of so many characters, without spaces at their ends."""
    cut = [text[start:start + length].strip() for start in range(0, len(text), length)]
    return [piece for piece in cut if piece]


def main() -> None:
    """Writes the files."""
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for split in ("train", "dev"):
        text = " ".join(lines(f"{split}.en-de.en.gz"))
        (folder / f"{split}.txt").write_text("\n".join(pieces(text, TRAINED)) + "\n")
    pages = zip(lines("test.en-de.pages.gz"), lines("test.en-de.en.gz"), strict=True)
    documents = [piece for _, page in itertools.groupby(pages, key=lambda pair: pair[0])
                 for piece in pieces(" ".join(line for _, line in page), TESTED)]
    (folder / "test.txt").write_text("\n".join(documents) + "\n")


if __name__ == "__main__":
    main()
