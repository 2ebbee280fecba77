# Sourced by the other scripts: which Python the project is set up with.
# An interpreter named in $PYTHON wins; else the first on PATH that is new enough.

find_python() {
  local candidate
  for candidate in ${PYTHON:-python3 python3.11 python3.12 python3.13}; do
    if command -v "$candidate" >/dev/null &&
      "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
      command -v "$candidate"
      return 0
    fi
  done
  if command -v "${PYTHON:-python3}" >/dev/null; then
    echo "Trainmaster needs Python 3.11 or newer; ${PYTHON:-python3} is $("${PYTHON:-python3}" -V 2>&1)." >&2
  else
    echo "Trainmaster needs Python 3.11 or newer; there is no ${PYTHON:-python3} on PATH." >&2
  fi
  echo "Install one (Debian 12: apt-get install python3 python3-venv) or name it: PYTHON=/path/to/python3.11 make ..." >&2
  return 1
}
