#!/bin/sh
# install.sh: sets stepper up in a repository, so that Claude Code runs each notebook cell as it writes it.
#
#   ./install.sh [TARGET] [--python PATH] [--notebooks PATTERN…] [--allow] [--add-ipykernel] [--link] [--mcp] [--statusline] [--plugin]
#                [--editable]
#   ./install.sh [TARGET] --uninstall
#   ./install.sh [TARGET] --demo
#
#   TARGET         the repository; the current folder where it is not given
#   --python PATH  the interpreter of the kernels (else TARGET/.venv, an active environment, a new .venv)
#   --notebooks PATTERN…  the folders and globs whose notebooks run, such as: analysis '*.ipynb' 'projects/**'
#                  (else `notebooks:` in TARGET/.stepper/config.yaml, else notebooks/; `.` is the top alone)
#   --allow        let Claude Code edit notebooks and call stepper without asking.
#                  Approving an edit is approving its execution: the cell runs at once
#   --add-ipykernel  add ipykernel to the project's dependencies (uv add --dev ipykernel): `uv sync` leaves it then
#   --link         `stepper` for your own shell: ~/.local/bin/stepper, which calls that of the project you are in
#   --mcp          serve other agents too (Cursor, Codex, Gemini, VS Code, Zed, JupyterLab): adds the package `mcp` to
#                  stepper's environment; then `stepper mcp --config CLIENT --install`
#   --statusline   a line below Claude Code's prompt: how far the notebook is, what runs; your own status line stays
#                  above it
#   --plugin       for stepper's plugin of Claude Code, which brings hooks and skills: the environment and the kernel alone
#   --editable     use this checkout itself, so that its changes hold at once
#   --uninstall    remove what install added, and only that
#   --demo         set up (TARGET, made if it is missing; else a new scratch folder) and play a whole job
#
# It needs Python 3.10 or newer with venv, or uv. A second run changes nothing.

set -eu

# Python does the work (stepper/install/installer.py). This script finds one, and makes the environment in between:
# `plan` refuses what must be refused, before anything has changed, and says what is to be made.

# From a wheel (stepper/install/wheel_install.py): the command that does this again, and a Python if the PATH has none
way=${STEPPER_WAY:-} python=${STEPPER_PYTHON:-}
unset STEPPER_WAY STEPPER_PYTHON

fail() {
  printf 'install.sh: %s\n' "$1" >&2
  [ $# -lt 2 ] || printf '%s\n' "$2" >&2
  exit 1
}

for word; do
  case $word in
    -h | --help)
      sed -n 's/^#   //p' "$0" | while IFS= read -r line; do
        case $line in
          './install.sh'*) printf '%s\n' "${way:-./install.sh}${line#./install.sh}" ;;
          *) printf '%s\n' "$line" ;;
        esac
      done
      exit 0
      ;;
  esac
done

here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd -P)
[ -f "$here/stepper/install/installer.py" ] || fail "$here is no checkout of stepper"

# In Claude Code stepper's own environment is on the PATH: it can't be what a new one is made of.
path=''
set -f
IFS=:
for folder in $PATH; do
  case $folder in
    */.stepper/env/bin | */.stepper/env/cli) ;;
    *) path=$path${path:+:}$folder ;;
  esac
done
unset IFS
set +f
PATH=$path

# Nothing is downloaded but the packages that pyproject.toml names: no look for a newer pip, no interpreter.
export PIP_DISABLE_PIP_VERSION_CHECK=1 UV_PYTHON_DOWNLOADS=never

uv=
if uv --version >/dev/null 2>&1; then uv=yes; fi

# A name on the PATH may be a shim of nothing: each one is asked itself.
base='' bare='' bare_path='' old=''
for name in python3 python3.14 python3.13 python3.12 python3.11 python3.10 ${python:+"$python"}; do
  version=$("$name" -I -B -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null) || continue
  case $version in
    3.[1-9][0-9]) ;;
    *)
      old=${old:-"$name is Python $version"}
      continue
      ;;
  esac
  if [ -n "$uv" ] || "$name" -I -B -c 'import ensurepip, venv' 2>/dev/null; then
    base=$(command -v "$name")
    break
  fi
  bare=${bare:-$version}
  bare_path=${bare_path:-$(command -v "$name")}
done
if [ -z "$base" ] && [ -n "$uv" ]; then
  base=$(cd "$here" && uv run --quiet --no-project --python '>=3.10' python -I -B -c 'import sys; print(sys.executable)') ||
    fail "uv found no Python 3.10 or newer" "uv python install 3.12"
fi
if [ -z "$base$bare" ]; then
  fail "stepper needs Python 3.10 or newer: ${old:-there is no python3 on the PATH}" \
    "install Python, or uv (https://docs.astral.sh/uv/), and run this again"
fi

# `plan`, `apply` and `uninstall`. -I and -c: neither PYTHONPATH nor a module in the current folder gets in the way
from_checkout() {
  "${base:-$bare_path}" -I -B -c \
    'import sys; sys.path.insert(0, sys.argv.pop(1)); from stepper.install.installer import main; sys.exit(main())' \
    "$here" "$@"
}
# What is installed is the wheel, if there is one, else the checkout; the record says where that came from.
what=. source=${way:-$here}
for wheel in "$here"/.wheel/*.whl; do [ ! -f "$wheel" ] || what=./.wheel/${wheel##*/}; done

# The plan is lines, name=value, and data alone: nothing that Python printed is evaluated. An empty stamp: the environment
# is as it should be.
target='' env='' state='' stamp='' editable='' demo='' scratch='' uninstall='' mcp=''
plan=$(from_checkout plan --source "$source" "$@") || exit $?
while IFS= read -r line; do
  value=${line#*=}
  case $line in
    target=*) target=$value ;;
    env=*) env=$value ;;
    state=*) state=$value ;;
    stamp=*) stamp=$value ;;
    editable=*) editable=$value ;;
    demo=*) demo=$value ;;
    scratch=*) scratch=$value ;;
    uninstall=*) uninstall=$value ;;
    mcp=*) mcp=$value ;;
  esac
done <<END
$plan
END
# A scratch folder gets an environment of its own: the demo installs pandas there
[ -z "$scratch" ] || unset VIRTUAL_ENV CONDA_PREFIX
set -- --source "$source" --planned "$target" "$@"

if [ -n "$uninstall" ]; then
  from_checkout uninstall "$@"
  exit
fi
no_venv() {
  fail "python3 is Python $1, but can't make environments: its venv module is missing" \
    "sudo apt install python$1-venv  # Debian, Ubuntu; or install uv: https://docs.astral.sh/uv/"
}
[ -n "$base" ] || no_venv "$bare"

make_env() {
  rm -rf -- "$env" && (umask 077 && mkdir -p -- "${env%/*}") || return
  if [ -n "$uv" ]; then
    # uv keeps wheels of folders by the time of pyproject.toml alone: without --refresh-package it takes an old one
    uv venv --quiet --no-project --python "$base" "$env" && cd "$here" &&
      uv pip install --quiet --compile-bytecode --refresh-package notebook-stepper \
        --python "$env/bin/python" ${editable:+-e} "$what${mcp:+[mcp]}"
  else
    ("$base" -m venv "$env" || no_venv "$version") && cd "$here" &&
      "$env/bin/python" -I -m pip install --quiet ${editable:+-e} "$what${mcp:+[mcp]}"
  fi
}

if [ -n "$stamp" ]; then
  printf '%-12s%s\n' environment "being made in $env (a minute at most)"
  if ! (make_env); then
    rm -rf -- "$env"
    home=${env%/*}
    (cd -- "$state" && rmdir -p -- "${home#"$state"/}") 2>/dev/null || :
    fail "the environment could not be made (see above); nothing else was changed in $target"
  fi
  # written last: an environment without it is half made
  printf '%s\n' "$stamp" >"$env/stamp"
  set -- --remade "$@"
fi
"$env/bin/python" -I -B -m stepper.install.installer apply "$@"
if [ -n "$demo" ]; then
  exec "$env/bin/python" -I "$here/examples/demo.py" "$target"
fi
