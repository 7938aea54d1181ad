"""Import name → distribution, and usual name → import statement. Tables of what is known; nothing is guessed.

Somebody may have registered a misspelt or invented name to catch those who install it unseen. So a name that stands in
no table here has no distribution, and never reaches an installer.
"""

from __future__ import annotations

import sys


def _words(text: str) -> list[str]:
    return text.split()


def _pairs(text: str) -> dict[str, str]:
    return dict(pair.split("=") for pair in text.split())


# The import name itself, with dashes.
_DASHED = _words("""
apache_beam arabic_reshaper category_encoders charset_normalizer clickhouse_connect clickhouse_driver
dash_bootstrap_components dask_ml dataclasses_json deep_translator duckdb_engine efficientnet_pytorch elasticsearch_dsl
email_validator face_recognition facenet_pytorch factor_analyzer fake_useragent feature_engine flask_cors flask_login
flask_migrate flask_sqlalchemy great_expectations great_tables gspread_dataframe huggingface_hub importlib_metadata
importlib_resources influxdb_client jsonpath_ng jupyter_client jupyter_core keras_tuner langchain_anthropic
langchain_community langchain_core langchain_openai langchain_text_splitters line_profiler llama_index lxml_html_clean
matplotlib_venn memory_profiler more_itertools nest_asyncio notion_client pandas_datareader pandas_gbq
pandas_market_calendars prompt_toolkit psycopg_pool pydantic_settings pytorch_forecasting pytorch_lightning
pytorch_tabnet qdrant_client requests_cache requests_oauthlib requests_toolbelt rouge_score sb3_contrib
segmentation_models_pytorch sentence_transformers sentry_sdk simple_salesforce sklearn_crfsuite sklearn_pandas slack_sdk
smart_open sqlalchemy_bigquery sqlalchemy_utils stable_baselines3 tensorflow_addons tensorflow_datasets tensorflow_hub
tensorflow_probability tensorflow_text tf_keras tflite_runtime torch_geometric typing_extensions webdriver_manager
ydata_profiling
""")

DISTRIBUTIONS: dict[str, str] = {name: name.replace("_", "-") for name in _DASHED} | _pairs("""
Bio=biopython Crypto=pycryptodome Cryptodome=pycryptodomex IPython=ipython MySQLdb=mysqlclient OpenGL=PyOpenGL
OpenSSL=pyOpenSSL PIL=pillow Xlib=python-xlib absl=absl-py airflow=apache-airflow antlr4=antlr4-python3-runtime
arango=python-arango atlassian=atlassian-python-api attr=attrs barcode=python-barcode bidi=python-bidi
binance=python-binance bs4=beautifulsoup4 bson=pymongo cairo=pycairo camelot=camelot-py can=python-can
cassandra=cassandra-driver community=python-louvain cpuinfo=py-cpuinfo cv2=opencv-python dateutil=python-dateutil
decouple=python-decouple delta=delta-spark discord=discord.py dns=dnspython docx=python-docx dotenv=python-dotenv
engineio=python-engineio factory=factory-boy faiss=faiss-cpu ffmpeg=ffmpeg-python fitz=PyMuPDF fpdf=fpdf2 gi=PyGObject
git=GitPython github=PyGithub gitlab=python-gitlab gnupg=python-gnupg google_auth_oauthlib=google-auth-oauthlib
googleapiclient=google-api-python-client graphql=graphql-core gridfs=pymongo grpc=grpcio grpc_status=grpcio-status
grpc_tools=grpcio-tools haiku=dm-haiku imblearn=imbalanced-learn impala=impyla janitor=pyjanitor jose=python-jose
jwt=PyJWT kafka=kafka-python ldap=python-ldap llama_cpp=llama-cpp-python magic=python-magic markdown_it=markdown-it-py
memcache=python-memcached mpl_toolkits=matplotlib mysql=mysql-connector-python nacl=PyNaCl nmap=python-nmap odf=odfpy
osgeo=GDAL paddle=paddlepaddle pdfminer=pdfminer.six playhouse=peewee pptx=python-pptx psycopg2=psycopg2-binary
pylab=matplotlib pynvml=nvidia-ml-py pyro=pyro-ppl pywt=PyWavelets pyximport=Cython rediscluster=redis-py-cluster
rest_framework=djangorestframework ruamel=ruamel.yaml scikitplot=scikit-plot scvi=scvi-tools serial=pyserial
shapefile=pyshp skbio=scikit-bio skfuzzy=scikit-fuzzy skimage=scikit-image sklearn=scikit-learn
sklearnex=scikit-learn-intelex skmultilearn=scikit-multilearn skopt=scikit-optimize sksurv=scikit-survival
slugify=python-slugify socketio=python-socketio socks=PySocks speech_recognition=SpeechRecognition stan=pystan
stl=numpy-stl superset=apache-superset surprise=scikit-surprise tabula=tabula-py talib=TA-Lib
telegram=python-telegram-bot tlz=toolz umap=umap-learn usb=pyusb vertexai=google-cloud-aiplatform vlc=python-vlc
weaviate=weaviate-client websocket=websocket-client whisper=openai-whisper whois=python-whois wikipediaapi=Wikipedia-API
wx=wxPython yaml=PyYAML zmq=pyzmq

azure.ai.documentintelligence=azure-ai-documentintelligence azure.ai.formrecognizer=azure-ai-formrecognizer
azure.ai.ml=azure-ai-ml azure.ai.textanalytics=azure-ai-textanalytics
azure.cognitiveservices.speech=azure-cognitiveservices-speech azure.core=azure-core azure.cosmos=azure-cosmos
azure.data.tables=azure-data-tables azure.eventhub=azure-eventhub azure.functions=azure-functions
azure.identity=azure-identity azure.keyvault.keys=azure-keyvault-keys azure.keyvault.secrets=azure-keyvault-secrets
azure.kusto.data=azure-kusto-data azure.mgmt.compute=azure-mgmt-compute azure.mgmt.resource=azure-mgmt-resource
azure.mgmt.storage=azure-mgmt-storage azure.monitor.query=azure-monitor-query
azure.search.documents=azure-search-documents azure.servicebus=azure-servicebus azure.storage.blob=azure-storage-blob
azure.storage.filedatalake=azure-storage-file-datalake azure.storage.fileshare=azure-storage-file-share
azure.storage.queue=azure-storage-queue azureml.core=azureml-core

google.ads.googleads=google-ads google.api_core=google-api-core google.auth=google-auth
google.cloud.aiplatform=google-cloud-aiplatform google.cloud.bigquery=google-cloud-bigquery
google.cloud.bigquery_storage=google-cloud-bigquery-storage google.cloud.bigtable=google-cloud-bigtable
google.cloud.dataproc_v1=google-cloud-dataproc google.cloud.datastore=google-cloud-datastore
google.cloud.dlp_v2=google-cloud-dlp google.cloud.documentai=google-cloud-documentai
google.cloud.exceptions=google-cloud-core google.cloud.firestore=google-cloud-firestore
google.cloud.kms=google-cloud-kms google.cloud.language=google-cloud-language
google.cloud.language_v1=google-cloud-language google.cloud.logging=google-cloud-logging
google.cloud.monitoring_v3=google-cloud-monitoring google.cloud.pubsub=google-cloud-pubsub
google.cloud.pubsub_v1=google-cloud-pubsub google.cloud.run_v2=google-cloud-run
google.cloud.secretmanager=google-cloud-secret-manager google.cloud.spanner=google-cloud-spanner
google.cloud.speech=google-cloud-speech google.cloud.storage=google-cloud-storage
google.cloud.tasks_v2=google-cloud-tasks google.cloud.texttospeech=google-cloud-texttospeech
google.cloud.translate=google-cloud-translate google.cloud.translate_v2=google-cloud-translate
google.cloud.videointelligence=google-cloud-videointelligence google.cloud.vision=google-cloud-vision
google.genai=google-genai google.generativeai=google-generativeai google.oauth2=google-auth google.protobuf=protobuf

databricks.sdk=databricks-sdk databricks.sql=databricks-sql-connector opentelemetry.sdk=opentelemetry-sdk
opentelemetry.trace=opentelemetry-api snowflake.connector=snowflake-connector-python
snowflake.snowpark=snowflake-snowpark-python snowflake.sqlalchemy=snowflake-sqlalchemy
""")

# The import name is the distribution's, but perhaps for capitals.
SAME: frozenset[str] = frozenset(
    _words("""
Cython Levenshtein MDAnalysis PyPDF2 SimpleITK accelerate adlfs aiohttp albumentations alembic altair anndata annoy
anthropic anyio apscheduler arch arrow arviz astropy asyncpg attrs autogluon awswrangler babel backoff bambi bertopic
bitsandbytes black blosc bokeh boto3 botocore bottleneck branca cartopy catboost causalml ccxt celery certifi cftime
chex chromadb click cloudpickle cloudscraper cma cmdstanpy cohere colorama colorcet contextily corner cryptography
cvxopt cvxpy cx_Oracle cycler cython daal4py darts dash dask datasets datashader dateparser dbfread deap deltalake
diffusers dill diskcache distributed django dlib docker dowhy dropbox dtreeviz duckdb dynesty easyocr econml
editdistance einops elasticsearch eli5 emcee emoji ephem esda ete3 evaluate faker fastai fastapi fasteners fastparquet
feedparser filelock findspark fiona flaml flask flax folium freezegun fsspec ftfy fuzzywuzzy gcsfs gensim geopandas
geopy gluonts gpflow gradio graphviz greenlet gspread gunicorn gurobipy gymnasium h2o h5py hdbscan hmmlearn holidays
holoviews html2text html5lib httpcore httpx humanize hvplot hyperopt hypothesis igraph imageio imutils ipykernel
ipyleaflet ipywidgets itables jax jellyfish jinja2 jira joblib jsonlines jsonschema jupyterlab kagglehub kaleido keras
kneed kornia kubernetes langchain langdetect langgraph leidenalg libpysal librosa lifelines lightgbm lightning lime
linearmodels litellm lmdb lmfit loguru lxml lz4 mapclassify markdown markdownify markupsafe marshmallow matplotlib
mechanize mediapipe metpy mimesis missingno mistralai mlflow mlxtend mne modin motor moviepy mplfinance msgpack
multiprocess mypy narwhals nbclient nbconvert nbformat neo4j netCDF4 networkx neuralprophet nevergrad nibabel nilearn
nltk notebook numba numexpr numpy numpyro ollama onnx onnxruntime openai openpyxl optax optuna oracledb orjson ortools
osmnx packaging paddleocr palettable pandas pandera papermill paramiko patsy pdf2image pdfplumber peewee peft pendulum
pexpect pgmpy phonenumbers pikepdf pinecone pingouin pint plotly plotnine pmdarima polars praw prefect prettytable
prophet psutil psycopg pulp pyLDAvis pyarrow pyathena pycaret pycountry pydantic pydeck pydicom pydot pydub pygame
pygments pygsheets pyinstrument pykalman pymc pymongo pymoo pymssql pymupdf pymysql pynndescent pyod pyodbc pyomo pypdf
pypdfium2 pyperclip pyproj pyreadr pyreadstat pysam pyspark pytesseract pytest pytrends pytz pyvis pyvista rapidfuzz
rasterio ray rdkit redis regex reportlab requests responses rich rioxarray rpy2 ruptures s3fs sacrebleu sacremoses
safetensors scanpy scapy scipy scrapy seaborn selenium sendgrid sentencepiece setuptools shap shapely simplejson six
skl2onnx skorch sktime skyfield sortedcontainers sounddevice soundfile spacy sparse sqlalchemy sqlglot sqlmodel squarify
stanza statsforecast statsmodels streamlit stripe structlog stumpy sunpy swifter sympy ta tables tabulate tenacity
tensorboard tensorflow tensorly textblob textstat thefuzz threadpoolctl tifffile tiktoken timm tokenizers toml tomli
toolz torch torchaudio torchinfo torchmetrics torchvision tornado tqdm trafilatura transformers treelib trimesh trino
trl tsfresh tslearn tweepy twilio typer tzlocal ujson ultralytics uncertainties unidecode urllib3 uvicorn vaderSentiment
validators vtk wandb watchdog weasyprint websockets werkzeug wikipedia wordcloud xarray xgboost xlrd xlsxwriter xlwings
xlwt xmltodict xxhash yarl yfinance zarr zstandard
""")
)

# What conda calls otherwise than PyPI does.
CONDA: dict[str, str] = _pairs("""
annoy=python-annoy blosc=python-blosc docker=docker-py duckdb=python-duckdb graphviz=python-graphviz
igraph=python-igraph kaleido=python-kaleido lmdb=python-lmdb msgpack=msgpack-python opencv-python=opencv
psycopg2-binary=psycopg2 tables=pytables torch=pytorch xxhash=python-xxhash
""")


def distribution(name: str) -> str | None:
    """Return the distribution that holds a module, dotted or not; None where none is known."""
    parts = name.split(".")
    for count in range(len(parts), 0, -1):  # google.cloud.storage is more special than google
        found = DISTRIBUTIONS.get(".".join(parts[:count]))
        if found:
            return found
    return parts[0] if parts[0] in SAME else None


# Names that mean the same to nearly everybody. Left out: what has two meanings (`st`, `sp`, `F`, `Dataset`), and
# what is rather a variable that its cell forgot to make (`auc`, `date`, `field`, `norm`, `product`, `signal`).
_MODULES = _pairs("""
ET=xml.etree.ElementTree alt=altair az=arviz ccrs=cartopy.crs cfeature=cartopy.feature dd=dask.dataframe
go=plotly.graph_objects gpd=geopandas hv=holoviews jnp=jax.numpy lgb=lightgbm mcolors=matplotlib.colors
mdates=matplotlib.dates mpatches=matplotlib.patches mpl=matplotlib msno=missingno mticker=matplotlib.ticker np=numpy
npt=numpy.typing nx=networkx pa=pyarrow pd=pandas pio=plotly.io pl=polars plt=matplotlib.pyplot pm=pymc
pq=pyarrow.parquet px=plotly.express sm=statsmodels.api smf=statsmodels.formula.api sns=seaborn tf=tensorflow
tfds=tensorflow_datasets tsa=statsmodels.tsa.api widgets=ipywidgets xgb=xgboost xr=xarray
""")
_PLAIN = _words("""
aiohttp bs4 catboost cv2 duckdb faiss folium gensim geopandas h5py httpx joblib librosa lightgbm matplotlib mlflow
networkx nltk numpy openpyxl optuna pandas patsy polars psutil psycopg2 pyarrow pyspark pytest requests scipy seaborn
shap sklearn spacy sqlalchemy statsmodels sympy tensorflow torch torchvision transformers wandb xarray xgboost yaml
""")
_MEMBERS = """
abc: ABC abstractmethod
bs4: BeautifulSoup
catboost: CatBoostClassifier CatBoostRegressor
collections: ChainMap Counter OrderedDict defaultdict deque namedtuple
concurrent.futures: ProcessPoolExecutor ThreadPoolExecutor as_completed
contextlib: contextmanager redirect_stdout suppress
copy: deepcopy
dataclasses: asdict dataclass
datasets: load_dataset
datetime: datetime timedelta timezone
decimal: Decimal
dotenv: load_dotenv
enum: Enum IntEnum
fractions: Fraction
functools: cached_property lru_cache partial reduce wraps
imblearn.over_sampling: SMOTE
io: BytesIO StringIO
ipywidgets: interact
IPython.display: HTML Markdown clear_output display
itertools: combinations permutations zip_longest
lightgbm: LGBMClassifier LGBMRegressor
math: ceil factorial floor sqrt
matplotlib.animation: FuncAnimation
matplotlib.colors: LinearSegmentedColormap ListedColormap LogNorm
matplotlib.gridspec: GridSpec
matplotlib.lines: Line2D
matplotlib.ticker: FuncFormatter MaxNLocator PercentFormatter
mpl_toolkits.mplot3d: Axes3D
multiprocessing: cpu_count
operator: attrgetter itemgetter
pandas: DataFrame read_csv
pathlib: Path
PIL: Image ImageDraw ImageFont
plotly.subplots: make_subplots
pprint: pprint
pyspark.sql: SparkSession
scipy: interpolate ndimage optimize stats
scipy.cluster.hierarchy: dendrogram fcluster linkage
scipy.interpolate: interp1d
scipy.optimize: curve_fit linprog minimize
scipy.sparse: csr_matrix
scipy.spatial.distance: cdist pdist squareform
scipy.stats: chi2_contingency f_oneway kruskal mannwhitneyu pearsonr shapiro spearmanr ttest_ind ttest_rel wilcoxon
sentence_transformers: SentenceTransformer
sklearn.base: BaseEstimator ClassifierMixin RegressorMixin TransformerMixin clone
sklearn.cluster: AgglomerativeClustering DBSCAN KMeans MiniBatchKMeans
sklearn.compose: ColumnTransformer make_column_transformer
sklearn.datasets: fetch_california_housing load_breast_cancer load_digits load_iris load_wine make_blobs
sklearn.datasets: make_classification make_moons make_regression
sklearn.decomposition: NMF PCA TruncatedSVD
sklearn.discriminant_analysis: LinearDiscriminantAnalysis
sklearn.dummy: DummyClassifier DummyRegressor
sklearn.ensemble: AdaBoostClassifier ExtraTreesClassifier GradientBoostingClassifier GradientBoostingRegressor
sklearn.ensemble: HistGradientBoostingClassifier HistGradientBoostingRegressor IsolationForest
sklearn.ensemble: RandomForestClassifier RandomForestRegressor StackingClassifier VotingClassifier
sklearn.feature_extraction.text: CountVectorizer TfidfVectorizer
sklearn.feature_selection: RFE SelectKBest f_classif mutual_info_classif
sklearn.gaussian_process: GaussianProcessRegressor
sklearn.impute: KNNImputer SimpleImputer
sklearn.inspection: permutation_importance
sklearn.linear_model: ElasticNet Lasso LinearRegression LogisticRegression Ridge SGDClassifier
sklearn.manifold: TSNE
sklearn.metrics: ConfusionMatrixDisplay RocCurveDisplay accuracy_score average_precision_score
sklearn.metrics: balanced_accuracy_score classification_report confusion_matrix f1_score log_loss mean_absolute_error
sklearn.metrics: mean_squared_error precision_recall_curve precision_score r2_score recall_score roc_auc_score roc_curve
sklearn.metrics: silhouette_score
sklearn.metrics.pairwise: cosine_similarity
sklearn.mixture: GaussianMixture
sklearn.model_selection: GridSearchCV KFold RandomizedSearchCV StratifiedKFold TimeSeriesSplit cross_val_predict
sklearn.model_selection: cross_val_score cross_validate learning_curve train_test_split
sklearn.naive_bayes: GaussianNB MultinomialNB
sklearn.neighbors: KNeighborsClassifier KNeighborsRegressor NearestNeighbors
sklearn.neural_network: MLPClassifier MLPRegressor
sklearn.pipeline: FeatureUnion Pipeline make_pipeline
sklearn.preprocessing: FunctionTransformer LabelEncoder MinMaxScaler OneHotEncoder OrdinalEncoder PolynomialFeatures
sklearn.preprocessing: PowerTransformer RobustScaler StandardScaler label_binarize
sklearn.svm: LinearSVC SVC SVR
sklearn.tree: DecisionTreeClassifier DecisionTreeRegressor plot_tree
sqlalchemy: create_engine
statsmodels.formula.api: ols
statsmodels.stats.multicomp: pairwise_tukeyhsd
statsmodels.stats.outliers_influence: variance_inflation_factor
statsmodels.tsa.arima.model: ARIMA
statsmodels.tsa.seasonal: STL seasonal_decompose
statsmodels.tsa.statespace.sarimax: SARIMAX
statsmodels.tsa.stattools: adfuller
tempfile: NamedTemporaryFile TemporaryDirectory
time: perf_counter sleep
torch: nn optim
torch.utils.data: DataLoader TensorDataset
torchvision: transforms
tqdm: tqdm
transformers: AutoModel AutoModelForCausalLM AutoModelForSequenceClassification AutoTokenizer TrainingArguments
typing: Any Callable Dict Iterable Iterator List Literal NamedTuple Optional Sequence Tuple TypedDict Union
urllib.parse: quote_plus urlencode urljoin urlparse
urllib.request: urlopen urlretrieve
uuid: uuid4
xgboost: XGBClassifier XGBRegressor
zipfile: ZipFile
zoneinfo: ZoneInfo
"""

ALIASES: dict[str, str] = (
    {name: f"import {module} as {name}" for name, module in _MODULES.items()}
    | {name: f"import {name}" for name in _PLAIN}
    | {
        name: f"from {module} import {name}"
        for module, names in (line.split(": ") for line in _MEMBERS.strip().splitlines())
        for name in names.split()
    }
)

# Modules of the standard library whose names are rather variables that a cell forgot to make.
_VARIABLES = frozenset(
    _words("""
antigravity array chunk cmd code idlelib keyword numbers parser profile queue resource select signal site stat
statistics string symbol test this token trace types
""")
)


def definition(name: str) -> str | None:
    """Return the import statement that usually makes a name; None where the name has no usual meaning."""
    if name in ALIASES:
        return ALIASES[name]
    if name in sys.stdlib_module_names and not name.startswith("_") and name not in _VARIABLES:
        return f"import {name}"
    return None
