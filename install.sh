#!/bin/sh
# install.sh: sets up stepper in a repository. Claude Code then runs notebook cells as it
# writes them.
#
#   ./install.sh [TARGET] [OPTIONS]
#   ./install.sh [TARGET] --uninstall
#   ./install.sh [TARGET] --demo
#
#   TARGET            the repository; by default the current folder
#   --python PATH     the interpreter of the kernels; by default TARGET/.venv, else an active
#                     environment, else a new .venv
#   --notebooks PATTERN…
#                     folders and globs of the notebooks that run, such as: analysis '*.ipynb'
#                     'projects/**'. By default `notebooks:` in TARGET/.stepper/config.yaml,
#                     else notebooks/. `.` is the top folder without its
#                     subfolders
#   --allow           let Claude Code edit notebooks and call stepper without asking.
#                     Approving an edit is approving its execution: the cell runs immediately
#   --add-ipykernel   add ipykernel to the project's dependencies (uv add --dev ipykernel):
#                     `uv sync` then keeps ipykernel
#   --link            also install `stepper` for your own shell: ~/.local/bin/stepper calls the
#                     stepper of the current project
#   --mcp             support other agents (Cursor, Codex, Gemini, VS Code, Zed, JupyterLab):
#                     add the package `mcp` to stepper's environment. Then run
#                     `stepper mcp --config CLIENT --install`
#   --mcp-only        like --mcp, but without support for Claude Code: no hooks, no skills,
#                     nothing in .claude/
#   --statusline      show the state of the notebook in a line below Claude Code's prompt. Your
#                     own status line stays above it
#   --plugin          set up only the environment and the kernel, for stepper's Claude Code
#                     plugin, which contains the hooks and skills
#   --editable        use this checkout itself: changes of its files apply immediately
#   --uninstall       remove what the installer added, and nothing else
#   --demo            set up TARGET (by default a new temporary folder) and run a complete
#                     example analysis
#
# install.sh needs Python 3.10 or newer with venv, or uv. A second run changes nothing.

set -eu

# stepper/install/installer.py does the work. This script finds a Python and creates the
# environment: `plan` makes all checks before anything changes, `apply` installs.

# stepper/install/wheel_install.py sets these: the command that the user typed, and a Python
# in case the PATH has none.
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
[ -f "$here/stepper/install/installer.py" ] || fail "$here is not a checkout of stepper"

# In Claude Code's shell, stepper's own environment is on the PATH. Don't create the new one
# from it.
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

# Download only the packages that pyproject.toml names: no newer pip, no interpreter.
export PIP_DISABLE_PIP_VERSION_CHECK=1 UV_PYTHON_DOWNLOADS=never

uv=
if uv --version >/dev/null 2>&1; then uv=yes; fi

# A name on the PATH may be a shim without an interpreter: run each one.
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
  fail "stepper needs Python 3.10 or newer: ${old:-python3 is not on the PATH}" \
    "install Python or uv (https://docs.astral.sh/uv/), then run install.sh again"
fi

# `plan` and `uninstall`. -I and -c: ignore PYTHONPATH and modules in the current folder.
from_checkout() {
  "${base:-$bare_path}" -I -B -c \
    'import sys; sys.path.insert(0, sys.argv.pop(1)); from stepper.install.installer import main; sys.exit(main())' \
    "$here" "$@"
}
# Install the wheel, if there is one, else the checkout. The record says which.
what=. source=${way:-$here}
for wheel in "$here"/.wheel/*.whl; do [ ! -f "$wheel" ] || what=./.wheel/${wheel##*/}; done

# The plan has lines of the form name=value. They are read as data, never evaluated. If the
# stamp is empty, the environment is up to date.
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
# A scratch folder gets its own environment, because the demo installs pandas there.
[ -z "$scratch" ] || unset VIRTUAL_ENV CONDA_PREFIX
set -- --source "$source" --planned "$target" "$@"

if [ -n "$uninstall" ]; then
  from_checkout uninstall "$@"
  exit
fi
no_venv() {
  fail "python3 (Python $1) can't create environments, because the module venv is missing" \
    "sudo apt install python$1-venv  # Debian, Ubuntu; or install uv: https://docs.astral.sh/uv/"
}
[ -n "$base" ] || no_venv "$bare"

make_env() {
  rm -rf -- "$env" && (umask 077 && mkdir -p -- "${env%/*}") || return
  if [ -n "$uv" ]; then
    # uv caches the wheel of a folder by the time of pyproject.toml. Without
    # --refresh-package it would use an old one.
    uv venv --quiet --no-project --python "$base" "$env" && cd "$here" &&
      uv pip install --quiet --compile-bytecode --refresh-package notebook-stepper \
        --python "$env/bin/python" ${editable:+-e} "$what${mcp:+[mcp]}"
  else
    ("$base" -m venv "$env" || no_venv "$version") && cd "$here" &&
      "$env/bin/python" -I -m pip install --quiet ${editable:+-e} "$what${mcp:+[mcp]}"
  fi
}

if [ -n "$stamp" ]; then
  printf '%-12s%s\n' environment "creating $env (takes up to a minute)"
  if ! (make_env); then
    rm -rf -- "$env"
    home=${env%/*}
    (cd -- "$state" && rmdir -p -- "${home#"$state"/}") 2>/dev/null || :
    fail "the environment could not be created (see above); nothing else was changed in $target"
  fi
  # Written last: an environment without a stamp is incomplete.
  printf '%s\n' "$stamp" >"$env/stamp"
  set -- --remade "$@"
fi
"$env/bin/python" -I -B -m stepper.install.installer apply "$@"
if [ -n "$demo" ]; then
  exec "$env/bin/python" -I "$here/examples/demo.py" "$target"
fi
