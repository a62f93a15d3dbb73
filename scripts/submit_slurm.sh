#!/usr/bin/env bash
# Submit one experiment to Slurm as an array of shards, and log out; collect later.
#
#   scripts/submit_slurm.sh -n 32 +experiment=smerf_complex_cr2 seed=0,1,2
#   scripts/submit_slurm.sh -n 32 -l slurm_gpu +experiment=zhang_fidelity hydra.launcher.partition=gpu
#
#   -n  shards per combination (1)      -l  launcher preset (slurm_cpu)
# then, whenever you like:
#   salrun status outputs/sweeps/<time>      the same command again submits what is missing
#   salrun collect outputs/sweeps/<time>
set -euo pipefail

shards=1
launcher=slurm_cpu
while getopts "n:l:h" option; do
  case $option in
    n) shards=$OPTARG ;;
    l) launcher=$OPTARG ;;
    *) sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$0"; exit 2 ;;
  esac
done
shift $((OPTIND - 1))
if ! [[ $shards =~ ^[1-9][0-9]*$ ]] || [ $# -eq 0 ]; then
  echo "usage: $0 [-n SHARDS] [-l LAUNCHER] +experiment=NAME [key=value ...]" >&2
  exit 2
fi

list=$(seq -s, -f "%.0f/$shards" 0 $((shards - 1)))
exec salrun -m "$@" "shard=$list" "hydra/launcher=$launcher" hydra.launcher.wait=false
