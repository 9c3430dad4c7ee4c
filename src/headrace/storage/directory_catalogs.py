"""What a data directory keeps beside its logs: settings, SCRAM credentials, access rules, quotas.

Each is one small file that is replaced as a whole, durably, before the change counts in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from headrace.storage.acl_catalog import load_acls, save_acls
from headrace.storage.configuration_catalog import ConfigurationCatalog, load_configurations, save_configurations
from headrace.storage.errors import StorageFull
from headrace.storage.file_system import FileSystem, format_free_space
from headrace.storage.log_health import is_disk_full
from headrace.storage.quota_catalog import QuotaTable, load_quotas, save_quotas
from headrace.storage.scram_credentials import ScramCatalog, load_scram_catalog, save_scram_catalog

__all__ = ["DirectoryCatalogs"]

_T = TypeVar("_T")


class DirectoryCatalogs:
    """Mutable; the part of `LogDirectory` that knows no logs."""

    path: Path
    _file_system: FileSystem

    def _load_catalogs(self) -> None:
        self._configurations = load_configurations(self._file_system, self.path)
        self._scram_credentials = load_scram_catalog(self._file_system, self.path)
        self._acls = load_acls(self._file_system, self.path)
        self._quotas = load_quotas(self._file_system, self.path)

    @property
    def configurations(self) -> ConfigurationCatalog:
        """What was changed while brokers ran here, but for topics."""
        return self._configurations

    def replace_configurations(self, configurations: ConfigurationCatalog) -> None:
        """Durable when it returns. Raises StorageFull, OSError; the old ones then stand."""
        self._durably(lambda: save_configurations(self._file_system, self.path, configurations))
        self._configurations = configurations

    @property
    def scram_credentials(self) -> ScramCatalog:
        """Who may log in by SCRAM."""
        return self._scram_credentials

    def replace_scram_credentials(self, catalog: ScramCatalog) -> None:
        """Durable when it returns. Raises StorageFull, OSError; the old ones then stand."""
        self._durably(lambda: save_scram_catalog(self._file_system, self.path, catalog))
        self._scram_credentials = catalog

    @property
    def acls(self) -> tuple[Mapping[str, str], ...]:
        """Access rules, see `acl_catalog`."""
        return self._acls

    def replace_acls(self, acls: tuple[Mapping[str, str], ...]) -> None:
        """Durable when it returns. Raises StorageFull, OSError; the old ones then stand."""
        self._durably(lambda: save_acls(self._file_system, self.path, acls))
        self._acls = acls

    @property
    def quotas(self) -> QuotaTable:
        """Client quotas, see `quota_catalog`."""
        return self._quotas

    def replace_quotas(self, quotas: QuotaTable) -> None:
        """Durable when it returns. Raises StorageFull, OSError; the old ones then stand."""
        self._durably(lambda: save_quotas(self._file_system, self.path, quotas))
        self._quotas = quotas

    def _durably(self, write: Callable[[], _T]) -> _T:
        try:
            return write()
        except OSError as error:
            if not is_disk_full(error):
                raise
            raise StorageFull(
                "disk-full",
                f"There is no room in {self.path} ({error.strerror}{format_free_space(self._file_system, self.path)}).",
                "Free disk space and try again.",
                path=str(self.path),
            ) from error
