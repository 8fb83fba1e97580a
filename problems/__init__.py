"""Translation, toy and graph problems, registered with T2T on import, one file a family."""
from problems import graphs, libreoffice, multi30k, text_files, toy, wmt14  # noqa: F401
