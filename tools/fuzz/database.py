"""temporary"""

from hypothesis.database import DirectoryBasedExampleDatabase


class _D:
    def __init__(self, folder):
        self.db = DirectoryBasedExampleDatabase(folder / "examples")

    def covering(self, name):
        return list(self.db.fetch(f"kvtwin:1:{name}:covering".encode()))

    def save_covering(self, name, data):
        self.db.save(f"kvtwin:1:{name}:covering".encode(), data)

    def save_failing(self, name, data):
        self.db.save(f"kvtwin:1:{name}:failing".encode(), data)

    def close(self):
        pass


def open_database(url, folder):
    return _D(folder)
