"""Translation problems, registered with T2T on import, one file a family."""
from problems import libreoffice, multi30k, text_files, wmt14  # noqa: F401
