"""caffelite on TabArena-Lite, or on three tables of scikit-learn, which need no network.

    pip install --pre tabarena '.[sklearn,frames]'
    python benchmarks/tabarena/run.py              # TabArena-Lite: the first split of 51 tables from OpenML
    python benchmarks/tabarena/run.py --configs 25 # the same, tuned
    python benchmarks/tabarena/run.py --local      # caffelite and AutoGluon's random forest, in 8 folds each
    python benchmarks/tabarena/run.py --verify     # the tests that TabArena has for each of its models

README.md has the rest.
"""

import argparse
import tempfile
from pathlib import Path

import tabarena.models

FOLDER = Path(__file__).parent
RESULTS = FOLDER.parents[1] / "build" / "tabarena"
tabarena.models.__path__.append(str(FOLDER / "models"))  # as if the folder caffelite were in it


def run_lite(configs):
    """Fit caffelite on the first split of each table, and print TabArena's leaderboard with it."""
    from tabarena.benchmark.experiment import TabArenaV0pt1ExperimentBundle
    from tabarena.contexts import TabArenaContext

    experiments = TabArenaV0pt1ExperimentBundle(models=[("caffelite", configs)]).build_experiments()
    context = TabArenaContext()
    context.build_and_run_jobs(
        experiments, expname=str(RESULTS / "experiments"), subset="lite", new_result_prefix="[New] ", debug_mode=True
    )
    leaderboard = context.compare(output_dir=RESULTS / "leaderboard")
    print(context.leaderboard_to_website_format(leaderboard=leaderboard).to_markdown(index=False))


def run_local(time_limit):
    """Fit caffelite and a random forest of AutoGluon on three quarters of each table, and print both on the rest."""
    from autogluon.tabular import TabularPredictor
    from sklearn.datasets import load_breast_cancer, load_diabetes, load_wine
    from sklearn.model_selection import train_test_split
    from tabarena.models.caffelite.model import CaffeliteModel

    for load, metric in ((load_breast_cancer, "roc_auc"), (load_wine, "log_loss"), (load_diabetes, "rmse")):
        train, test = train_test_split(load(as_frame=True).frame, random_state=0)
        with tempfile.TemporaryDirectory() as folder:
            predictor = TabularPredictor("target", eval_metric=metric, path=folder, verbosity=0).fit(
                train,
                hyperparameters={CaffeliteModel: {}, "RF": {}},
                num_bag_folds=8,
                ag_args_ensemble={"fold_fitting_strategy": "sequential_local"},
                fit_weighted_ensemble=False,
                time_limit=time_limit,
            )
            columns = ["model", "score_test", "score_val", "fit_time", "pred_time_test"]
            print(f"\n{load.__name__}, {metric}, {len(train)} rows")
            print(predictor.leaderboard(test)[columns].to_string(index=False, float_format="{:.4g}".format))


def verify():
    """Run what `pytest -m models -k caffelite` runs in TabArena's repository."""
    from autogluon.tabular.testing import FitHelper
    from tabarena.models.caffelite.info import caffelite_info

    FitHelper.verify_model(model_cls=caffelite_info.model_cls, model_hyperparameters={})
    names = [experiment.name for experiment in caffelite_info.search_space.generate_all_bag_experiments(200)]
    print(f"verified, with {len(set(names))} configurations")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--configs", type=int, default=0, help="random configurations beside the default one")
    parser.add_argument("--local", action="store_true", help="three tables of scikit-learn instead of TabArena")
    parser.add_argument("--verify", action="store_true", help="only what TabArena tests of a model")
    parser.add_argument("--time-limit", type=float, help="seconds for all folds of a model, with --local")
    options = parser.parse_args()
    if options.verify:
        verify()
    elif options.local:
        run_local(options.time_limit)
    else:
        run_lite(options.configs)
