"""Prints what makes bash and zsh complete verbs, flags and names of experiments.

    eval "$(lingo completion)"                     in this shell
    lingo completion > ~/.lingo_completion         in every shell, with `. ~/.lingo_completion` in
                                                   ~/.bashrc or ~/.zshrc

When names of experiments are needed, the shell calls `lingo list --names`.
"""

from __future__ import annotations

from lingo.cli.command import VerbOptions
from lingo.cli.main import VERBS, import_verb
from lingo.config.options import declarations, option_class

_SCRIPT = """\
# Completion of lingo for bash and zsh: eval "$(lingo completion)"
if [ -n "${ZSH_VERSION-}" ]; then
  autoload -U +X compinit bashcompinit && compinit -u && bashcompinit
fi

_lingo_flags() {
  case "$1" in
CASES
  esac
}

_lingo() {
  local before="${COMP_LINE:0:$COMP_POINT}" words=()
  local word="${before##* }" verb="${COMP_WORDS[1]}" start="" candidate
  COMPREPLY=()
  if [ "$COMP_CWORD" -le 1 ]; then
    words=(VERBS)
  else
    case "$word" in
      --exp=*) start="--exp=" words=($(lingo list --names 2>/dev/null)) ;;
      --*) words=($(_lingo_flags "$verb")) ;;
      *) case "$verb" in list|describe) words=($(lingo list --names 2>/dev/null)) ;; esac ;;
    esac
  fi
  for candidate in "${words[@]}"; do
    if [[ "$start$candidate" == "$word"* ]]; then
      # bash takes what is after = for a word of its own
      if [[ -z "${ZSH_VERSION-}" && "$word" == *=* ]]; then
        candidate="$start$candidate"
        COMPREPLY+=("${candidate#"${word%%=*}"=}")
      else
        COMPREPLY+=("$start$candidate")
      fi
    fi
  done
  if [[ -n "${ZSH_VERSION-}" && ${#COMPREPLY[@]} -eq 0 && "$word" == *=* ]]; then
    setopt local_options null_glob  # bash completes paths by itself
    for candidate in "${word#*=}"*; do
      COMPREPLY+=("${word%%=*}=$candidate")
    done
  fi
  if [[ ${#COMPREPLY[@]} -eq 1 && "${COMPREPLY[0]-}${COMPREPLY[1]-}" == *= ]]; then
    compopt -o nospace 2>/dev/null
  fi
}
complete -o default -F _lingo lingo
"""


@option_class
class Options(VerbOptions):
    """The options of `lingo completion`."""


def run(options: Options) -> int:
    """Prints the completion script."""
    print(script(), end="")
    return 0


def script() -> str:
    """Returns the completion script, for both bash and zsh."""
    cases = "\n".join(f"    {name}) echo '{' '.join(_flags(name))}' ;;" for name in VERBS)
    return _SCRIPT.replace("CASES", cases).replace("VERBS", " ".join(VERBS))


def _flags(verb: str) -> list[str]:
    """Returns a verb's flags for completion, such as `--exp=`, `--traceback` and `--sort=path`."""
    found: list[str] = []
    for one in declarations(import_verb(verb).Options):
        flag = f"--{one.flag}"
        if one.types == (bool,) or one.option.switch_value is not None:
            found.append(flag)
        if one.types != (bool,):
            found += [f"{flag}={choice}" for choice in one.choices] or [f"{flag}="]
    return found
