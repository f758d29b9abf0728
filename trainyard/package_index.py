"""The package index of a stack (node.package_index). Standard library only, because nodes import it at boot."""

PACKAGES = (".whl", ".tar.gz", ".zip")  # files of a folder or an S3 prefix with packages


def index_options(index: str | None) -> list[str]:
    """Return the options of uv and pip for an index that is no S3 prefix; None: the default index.

    A PEP 503 index ends in /simple, any other value is a folder or a page of packages.
    """
    if not index:
        return []
    return ["--index-url", index] if index.rstrip("/").endswith("simple") else ["--no-index", "--find-links", index]
