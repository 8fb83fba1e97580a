"""Translation problems, registered with T2T on import, one file a family."""
from problems import libreoffice  # noqa: F401
