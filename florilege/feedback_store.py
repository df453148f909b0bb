"""Feedback on disk: one SQLite database in a folder, which a server writes and others read.

The last feedback on an answer counts. At its size limit the database refuses feedback and deletes
nothing.
"""

import json
import os
import re
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from florilege.errors import DataError

FILE = "feedback.sqlite3"
NOT_LISTED = "not_listed"
NOT_AN_ORGANISM = "not_an_organism"
_ANSWER_ID = re.compile("[0-9a-f]{32}")
_LOCK_WAIT_MS = 2000
"""For other writers: sixteen votes at once on a slow disk take about a second, SQLite does not
serve them in order, and a vote that is refused is mostly lost."""
_RESERVED_PAGES = 64  # beyond the limit, for feedback that withdraws consent

SCHEMA = """
CREATE TABLE IF NOT EXISTS answers (
    id TEXT PRIMARY KEY,
    key TEXT NOT NULL,  -- name of the key that asked; empty where none was needed
    bundle_sha256 TEXT,
    calibration_id TEXT,
    rule TEXT,
    k REAL,
    coverage REAL,
    guarantee TEXT,
    images INTEGER,
    list TEXT,
    restricted INTEGER,
    verdict TEXT,
    members TEXT NOT NULL  -- class ids of the set, a JSON array
);
CREATE TABLE IF NOT EXISTS feedback (
    number INTEGER PRIMARY KEY,
    answer_id TEXT NOT NULL REFERENCES answers (id),
    key TEXT NOT NULL,
    idempotency_key TEXT,
    time TEXT NOT NULL,
    class_id TEXT NOT NULL,  -- or not_listed, not_an_organism
    in_set INTEGER,
    note TEXT,
    consent INTEGER NOT NULL,
    licence TEXT,  -- under which the photos are given; null without consent
    photos INTEGER NOT NULL,  -- how many were kept then
    UNIQUE (key, idempotency_key)
);
CREATE INDEX IF NOT EXISTS feedback_by_answer ON feedback (answer_id);
CREATE TABLE IF NOT EXISTS photos (
    answer_id TEXT NOT NULL REFERENCES answers (id),
    number INTEGER NOT NULL,
    jpeg BLOB NOT NULL,
    PRIMARY KEY (answer_id, number)
);
"""

Row = Mapping[str, Any]


class FeedbackStore:
    """The store that a server writes; one thread at a time. ``folder`` must exist.

    Raises:
        sqlite3.Error: The database cannot be opened or written; also raised by every method.
    """

    def __init__(self, folder: Path, *, max_bytes: int) -> None:
        path = folder / FILE
        # For its owner alone; SQLite would ask the umask, and gives its journal the rights of this
        # file.
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
        # "IMMEDIATE": a transaction that reads first and then asks to write is refused at once,
        # without waiting, if another process asks at the same time.
        self._db = sqlite3.connect(path, check_same_thread=False, isolation_level="IMMEDIATE")
        self._db.row_factory = sqlite3.Row
        try:
            self._db.execute(f"PRAGMA busy_timeout = {_LOCK_WAIT_MS}")  # also to create the tables
            self._db.executescript(SCHEMA)
            self._db.execute("PRAGMA secure_delete = ON")  # overwrite deleted photos
            (page_bytes,) = self._db.execute("PRAGMA page_size").fetchone()
        except sqlite3.Error:
            self._db.close()
            raise
        self._max_pages = max(1, max_bytes // page_bytes)

    def answer(self, answer_id: str) -> Row | None:
        """The row of an answer that has feedback."""
        return self._one("SELECT * FROM answers WHERE id = ?", answer_id)

    def repeated(self, key: str, idempotency_key: str | None) -> Row | None:
        """The earlier feedback row with this Idempotency-Key from the same key."""
        query = "SELECT * FROM feedback WHERE key = ? AND idempotency_key = ?"
        return self._one(query, key, idempotency_key)

    def count_photos(self, answer_id: str) -> int:
        """The number of stored photos of an answer."""
        query = "SELECT count(*) FROM photos WHERE answer_id = ?"
        (count,) = self._db.execute(query, (answer_id,)).fetchone()
        return int(count)

    def add(self, answer: Row, feedback: Row, photos: Sequence[bytes]) -> None:
        """Store feedback on an answer and its photos, all or nothing.

        Without consent, the stored photos of the answer are deleted.
        """
        reserve = 0
        with self._db:
            if not feedback["consent"]:
                delete = "DELETE FROM photos WHERE answer_id = ?"
                reserve = _RESERVED_PAGES * self._db.execute(delete, (answer["id"],)).rowcount
            # Set anew each time: only feedback that withdraws consent may use the reserve.
            self._db.execute(f"PRAGMA max_page_count = {self._max_pages + reserve}")
            self._insert("INSERT OR IGNORE INTO answers", answer)
            for number, jpeg in enumerate(photos, start=1):
                photo = {"answer_id": answer["id"], "number": number, "jpeg": jpeg}
                self._insert("INSERT INTO photos", photo)
            self._insert("INSERT INTO feedback", feedback)

    def close(self) -> None:
        self._db.close()

    def _one(self, query: str, *values: str | None) -> Row | None:
        row = self._db.execute(query, values).fetchone()
        return None if row is None else dict(row)

    def _insert(self, into: str, row: Row) -> None:
        values = ", ".join(f":{name}" for name in row)
        self._db.execute(f"{into} ({', '.join(row)}) VALUES ({values})", dict(row))


@contextmanager
def open_feedback(folder: Path) -> Iterator["_FeedbackReader"]:
    """Open the feedback in a folder for reading, even while a server writes.

    Raises:
        DataError: There is no feedback, or it cannot be read; also inside the block.
    """
    path = folder / FILE
    if not path.is_file() or path.is_symlink():
        raise DataError(f"{folder} holds no {FILE}; name the folder of serve --feedback-store")
    try:
        # Writable, so that SQLite can roll back what a crashed server left half done.
        address = f"{path.absolute().as_uri()}?mode=rw"
        with closing(sqlite3.connect(address, uri=True)) as db:
            db.row_factory = sqlite3.Row
            db.execute("PRAGMA query_only = ON")
            # A file may come from anybody: its schema must not call functions with side effects.
            db.execute("PRAGMA trusted_schema = OFF")
            yield _FeedbackReader(db)
    except sqlite3.Error as error:
        raise DataError(f"{path} cannot be read: {error}") from error


class _FeedbackReader:
    """The rows and photos of a store."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db

    def answer_ids(self) -> set[str]:
        """The ids of all answers with feedback."""
        return {row["id"] for row in self._db.execute("SELECT id FROM answers")}

    def latest_rows(self) -> list[dict[str, Any]]:
        """The last feedback row of each answer, joined with the answer.

        ``class_id`` is None if the photo shows no organism; ``set`` holds class ids.
        """
        rows = self._db.execute(
            "SELECT answers.*, feedback.* FROM feedback JOIN answers ON id = answer_id "
            "WHERE number IN (SELECT max(number) FROM feedback GROUP BY answer_id) ORDER BY number"
        ).fetchall()
        return [_checked(dict(row)) for row in rows]

    def photos(self, answer_id: str) -> list[bytes]:
        """The photos of an answer, each a JPEG."""
        query = "SELECT jpeg FROM photos WHERE answer_id = ? AND typeof(jpeg) = 'blob'"
        rows = self._db.execute(f"{query} ORDER BY number", (answer_id,))
        return [row["jpeg"] for row in rows]


def _checked(row: dict[str, Any]) -> dict[str, Any]:
    try:
        members = json.loads(row.pop("members"))
    except (ValueError, TypeError) as error:
        raise sqlite3.DataError(f"the set of answer {row['answer_id']!r} is not JSON") from error
    if not isinstance(row["class_id"], str) or not _ANSWER_ID.fullmatch(str(row["answer_id"])):
        raise sqlite3.DataError(f"answer {row['answer_id']!r} does not come from a server")
    class_id = None if row["class_id"] == NOT_AN_ORGANISM else row["class_id"]
    return {**row, "class_id": class_id, "set": members}
