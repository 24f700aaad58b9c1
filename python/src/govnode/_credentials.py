"""What a client shows of itself, and whom it trusts: tokens, and certificates of its own cluster."""

from __future__ import annotations

import copy
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import ssl

#: A token, or what returns one: it is asked again after the service did not know the one before. It is called on a
#: thread of its own.
Token = str | Callable[[], str]


class Credentials:
    """The token that every request shows. It is in no representation and in no error."""

    def __init__(self, token: Token | None) -> None:
        self._lock = threading.Lock()
        self._ask: Callable[[], str] | None = None
        self._drawing: Future[bool] | None = None  # the token that is being asked for
        self._header: bytes | None = None
        self._file = ""
        self._stamp: tuple[int, int] | None = None
        if token is None:
            token = os.environ.get("GOVNODE_TOKEN") or None
            self._file = os.environ.get("GOVNODE_TOKEN_FILE", "") if token is None else ""
        if isinstance(token, str):
            self._header = _header(token)
        elif token is not None:
            self._ask = token

    def __repr__(self) -> str:
        return "Credentials(...)"

    def namespace(self) -> str:
        """Return the namespace of the token, where its text says so; else nothing."""
        header = self.header() if self._ask is None else None
        return namespace_of(header[len(b"Bearer ") :].decode()) if header else ""

    def forked(self) -> Credentials:
        """Return the same for the child of a fork, where whoever drew a token is no more."""
        other = copy.copy(self)
        other._lock, other._drawing = threading.Lock(), None
        return other

    def known(self) -> bool:
        """Report whether there is something to show, or nothing to be shown."""
        return self._ask is None or self._header is not None

    def header(self) -> bytes | None:
        """Return the header of the next request."""
        return self._read() if self._file else self._header

    def other(self, header: bytes | None) -> bool | Future[bool]:
        """Tell whether there is another one to show than a header that the service did not know.

        If a token has to be drawn for that, this returns what will tell. It may take long: one thread draws it, and who
        waits does so for as long as it has time.
        """
        if self._ask is None:
            return self._file != "" and self.header() != header
        with self._lock:
            if self._header != header:
                return True  # another request has asked for a new one
            if self._drawing is None:
                drawing = Future[bool]()
                drawing.set_running_or_notify_cancel()  # who waits no longer does not cancel it
                args = (self._ask, drawing)
                threading.Thread(target=self._draw, args=args, name="govnode-token", daemon=True).start()
                self._drawing = drawing
            return self._drawing

    def _draw(self, ask: Callable[[], str], drawing: Future[bool]) -> None:
        try:
            fresh = _header(ask())
        except BaseException as e:  # who waits is to know
            with self._lock:
                self._drawing = None
            drawing.set_exception(e)
            return
        with self._lock:
            self._drawing = None
            self._header, old = fresh, self._header
        drawing.set_result(fresh != old)

    def _read(self) -> bytes:
        """Read the file of the token again where it has changed."""
        with self._lock:
            try:
                info = os.stat(self._file)
                stamp = (info.st_mtime_ns, info.st_size)
                if self._header is None or stamp != self._stamp:
                    with open(self._file, encoding="ascii") as f:
                        self._header, self._stamp = _header(f.read().strip()), stamp
            except (OSError, UnicodeError) as e:
                raise ValueError(f"govnode: GOVNODE_TOKEN_FILE: {self._file} cannot be read: {e}") from None
            return self._header


def _header(token: str) -> bytes:
    if not token or any(c <= " " or c > "~" for c in token):
        raise ValueError("govnode: token: it is empty, or has a character in it that no token has")
    return b"Bearer " + token.encode()


def namespace_of(token: str) -> str:
    """Return the namespace in the text of an opaque token, gn_NAMESPACE.ID.SECRET; nothing for others."""
    if not token.startswith("gn_"):
        return ""
    parts = token[len("gn_") :].rsplit(".", 2)
    return parts[0] if len(parts) == 3 else ""


def settings() -> tuple[str, str, str]:
    """Return the files of certificates that the environment names: authorities, certificate and key."""
    names = ("GOVNODE_TLS_CA", "GOVNODE_TLS_CERT", "GOVNODE_TLS_KEY")
    ca, cert, key = (os.environ.get(name, "") for name in names)
    return ca, cert, key


def trust(ca: str, cert: str, key: str) -> ssl.SSLContext:
    """Return what trusts an authority, or those of this system, and shows a certificate if there is one."""
    import ssl

    if key and not cert:
        raise ValueError("govnode: key: names the key of no certificate; give cert as well")
    try:
        context = ssl.create_default_context(cafile=ca or None)
    except OSError as e:  # which names no file
        raise ValueError(f"govnode: ca: {ca} cannot be read as certificates in PEM: {e}") from None
    if ca:  # a cluster's own, whose nodes speak nothing older
        context.minimum_version = ssl.TLSVersion.TLSv1_3
    if cert:
        try:
            context.load_cert_chain(cert, key or None)
        except OSError as e:
            files = f"{cert} and {key}" if key else cert
            raise ValueError(
                f"govnode: cert: {files} cannot be read as a certificate and its key in PEM: {e}"
            ) from None
    return context
