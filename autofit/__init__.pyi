from .api.config.load import load as load
from .api.measure import estimate as estimate, measure as measure
from .api.result import (
    Estimate as Estimate,
    Result as Result,
    SweepResult as SweepResult,
)
from .api.sweep import sweep as sweep
from .api.tune import tune as tune
from .api.tune_script import tune_script as tune_script
from .api.watch import Watch as Watch
from .errors import (
    AutofitError as AutofitError,
    ConfigError as ConfigError,
    DeviceBusyError as DeviceBusyError,
    NothingFitsError as NothingFitsError,
    NoTrialFinishedError as NoTrialFinishedError,
    StorageError as StorageError,
    TrialProcessError as TrialProcessError,
    TuneError as TuneError,
    UsageError as UsageError,
    UserCodeError as UserCodeError,
)
from .records import __version__ as __version__
from .records.knobs import FitConfig as FitConfig
from .records.result import Cell as Cell
from .records.states import Outcome as Outcome
from .records.trial import Limits as Limits, Measurement as Measurement, Trial as Trial
from .report.console.progress import Progress as Progress
from .search.sampler import FrontierSampler as FrontierSampler
