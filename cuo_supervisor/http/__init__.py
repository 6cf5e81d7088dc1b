"""The HTTP service: the JSON API and the auditor's page. A composition root; needs the `api` extra.

from cuo_supervisor.http import Options, create_app
"""

from cuo_supervisor.http.app import create_app
from cuo_supervisor.http.options import Options

__all__ = ["Options", "create_app"]
